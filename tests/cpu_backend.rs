//! Candidates in their own process: what they may do, and how each misdeed ends.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

#[path = "common/host.rs"]
mod host;

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpid};
use warpsmith::backend::cpu::{Arena, Compiler, Host, Limits, device_card};
use warpsmith::backend::{Fault, Region};
use warpsmith::op::Dtype;

use host::{Bench, EMPTY, LIMIT, SCALE, available, limits};

#[test]
fn an_honest_kernel_runs_over_all_threads_and_comes_to_rest() {
    let mut bench = Bench::new(10_007);
    let mut host = bench.host(&[SCALE, EMPTY]);
    for round in 0..50u8 {
        bench.arena.bytes_mut(&bench.y.clone()).fill(round);
        let before = Instant::now();
        let time = host.launch(&bench.call(0), LIMIT).unwrap();
        assert!(time <= before.elapsed());
        assert!(bench.output().iter().enumerate().all(|(i, y)| *y == i as f32 * 2.0), "round {round}");
        host.idle_check().unwrap();
    }
    host.run(&vec![bench.call(1); 1000], LIMIT).unwrap();
    host.run(&[], LIMIT).unwrap();
    host.idle_check().unwrap();
}

#[test]
fn every_index_of_a_loop_is_visited_once_whatever_its_length() {
    let bench = Bench::new(301);
    let text = "
        static void body(int64_t begin, int64_t end, void *y) { for (int64_t i = begin; i < end; i++) ((float *)y)[i] += 1; }
        static void nested(int64_t begin, int64_t end, void *y) { for (int64_t i = begin; i < end; i++) ws_parallel(1, body, (float *)y + i); }
        static void kernel(const float *x, float *y, int64_t n, float s) {
            memset(y, 0, n * sizeof *y);
            for (int64_t m = 0; m <= n; m++) ws_parallel(m, m % 2 ? body : nested, y);
        }";
    let mut host = bench.host(&[text]);
    host.launch(&bench.call(0), LIMIT).unwrap();
    assert!(bench.output().iter().enumerate().all(|(i, y)| *y == (301 - i) as f32));
}

#[test]
fn a_crash_is_a_fault_in_words() {
    let bench = Bench::new(16);
    let kernel = |body: &str| format!("static void kernel(const float *x, float *y, int64_t n, float s) {{ {body} }}");
    let offset = bench.x.offset + 12;
    for (body, words) in [
        ("*(volatile int *)8 = 1;", "SIGSEGV at a null pointer"),
        ("((volatile float *)y)[1 << 26] = 1;", "SIGSEGV at an address outside its tensors"),
        ("volatile int64_t z = n - 16; y[0] = 5 / z;", "SIGFPE (a division of integers by zero)"),
        ("__builtin_trap();", "SIGILL (an instruction this processor does not have)"),
        ("((float *)x)[3] = 1;", &*format!("it wrote to its inputs (byte {offset} of their memory)")),
        ("char *volatile p = malloc(64); free(p); free(p);", "SIGABRT (a damaged heap or a failed assertion)"),
    ] {
        let fault = bench.fault(&kernel(body));
        assert!(matches!(fault, Fault::Crash { .. }) && fault.to_string() == words, "{body}: {fault:?}");
    }
}

#[test]
fn a_crash_in_a_borrowed_thread_is_the_same() {
    let bench = Bench::new(64);
    let text = "
        static void body(int64_t begin, int64_t end, void *x) { if (end == 64) ((float *)x)[0] = 1; }
        static void kernel(const float *x, float *y, int64_t n, float s) { ws_parallel(n, body, (void *)x); }";
    assert!(matches!(bench.fault(text), Fault::Crash { input_offset: Some(at), .. } if at == bench.x.offset));
}

#[test]
fn system_calls_and_clocks_end_a_kernel() {
    let bench = Bench::new(16);
    if available("seccomp") {
        for (number, name) in [("SYS_openat", "openat"), ("SYS_clone", "clone"), ("SYS_clock_gettime", "clock_gettime")]
        {
            let text = format!(
                "#include <sys/syscall.h>\nstatic void kernel(const float *x, float *y, int64_t n, float s) {{\n\
                 long r; __asm__ volatile(\"syscall\" : \"=a\"(r) : \"0\"((long){number}), \"D\"(0), \"S\"(0), \"d\"(0) : \"rcx\", \"r11\", \"memory\"); }}"
            );
            if cfg!(target_arch = "x86_64") {
                assert_eq!(bench.fault(&text).to_string(), format!("forbidden system call ({name})"));
            }
        }
    }
    if available("clock") {
        let text = "#include <immintrin.h>\nstatic void kernel(const float *x, float *y, int64_t n, float s) { y[0] = __builtin_ia32_rdtsc(); }";
        assert_eq!(bench.fault(text).to_string(), "it read the processor's clock");
    }
}

#[test]
fn a_hang_ends_at_its_limit_and_not_much_later() {
    let bench = Bench::new(16);
    let mut host = bench.host(&[
        "static void kernel(const float *x, float *y, int64_t n, float s) { for (;;) __asm__ volatile(\"\"); }",
    ]);
    let start = Instant::now();
    let limit = Duration::from_millis(300);
    let fault = host.launch(&bench.call(0), limit).unwrap_err();
    assert!(matches!(fault, Fault::Timeout { limit: said } if said == limit), "{fault:?}");
    assert!(start.elapsed() >= limit);
    assert!(matches!(host.launch(&bench.call(0), LIMIT), Err(Fault::Host(_))));
}

#[test]
fn leaving_subnormals_switched_off_is_found_in_every_thread() {
    let bench = Bench::new(16);
    let flush = "__builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);";
    for text in [
        format!("static void kernel(const float *x, float *y, int64_t n, float s) {{ {flush} }}"),
        format!(
            "static void body(int64_t begin, int64_t end, void *x) {{ if (end == 16 && begin > 0) {{ {flush} }} }}\n\
             static void kernel(const float *x, float *y, int64_t n, float s) {{ ws_parallel(n, body, y); }}"
        ),
    ] {
        if cfg!(target_arch = "x86_64") && std::thread::available_parallelism().unwrap().get() > 1 {
            assert!(bench.fault(&text).to_string().contains("floating-point environment"));
        }
    }
}

#[test]
fn a_kernel_that_leaves_a_loop_by_the_back_door_is_waited_for() {
    let bench = Bench::new(16);
    // The launching thread jumps out of its share while another thread is still at work.
    let text = "
        typedef struct { float *y; void *back[5]; } job;
        static void body(int64_t begin, int64_t end, void *context) {
            job *p = context;
            if (begin == 0) __builtin_longjmp(p->back, 1);
            for (volatile int64_t i = 0; i < 50000000; i++) {}
            p->y[0] = 2;
        }
        static void kernel(const float *x, float *y, int64_t n, float s) {
            static const int parts = 2;
            volatile job p;
            p.y = y;
            y[0] = 1;
            if (__builtin_setjmp((void **)p.back) == 0) ws_parallel(parts, body, (void *)&p);
        }";
    if std::thread::available_parallelism().unwrap().get() > 1 {
        let mut host = bench.host(&[text]);
        for _ in 0..2 {
            host.launch(&bench.call(0), LIMIT).unwrap();
            host.idle_check().unwrap();
        }
    }
}

#[test]
fn the_child_holds_nothing_but_its_pipes_and_has_no_environment() {
    // In a process of its own: children of other tests that are still starting hold more.
    const ALONE: &str = "WARPSMITH_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "the_child_holds_nothing_but_its_pipes_and_has_no_environment";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let bench = Bench::new(16);
    let _open = std::fs::File::open("/proc/self/status").unwrap();
    let host = bench.host(&[EMPTY]);
    let children = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        let command = std::fs::read(path.join("cmdline")).ok()?;
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let parent = format!("PPid:\t{}", std::process::id());
        (command.starts_with(b"warpsmith\0host\0") && status.lines().any(|line| line == parent)).then_some(path)
    });
    let mut seen = 0;
    for child in children {
        // Not dumpable: only root may look further.
        let (Ok(fds), Ok(environment)) = (std::fs::read_dir(child.join("fd")), std::fs::read(child.join("environ")))
        else {
            continue;
        };
        let names: Vec<String> =
            fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok()).map(|p| p.display().to_string()).collect();
        assert!(names.iter().all(|name| name == "/dev/null" || name.starts_with("pipe:")), "{names:?}");
        assert_eq!(environment, b"");
        seen += 1;
    }
    assert!(host.is_alive() && (seen > 0 || !rustix::process::geteuid().is_root()));
}

#[test]
fn when_the_judge_lets_go_a_running_child_ends() {
    let bench = Bench::new(16);
    let mut host = bench.host(&[
        "static void kernel(const float *x, float *y, int64_t n, float s) { for (;;) __asm__ volatile(\"\"); }",
    ]);
    assert!(host.cpu_time() > Duration::ZERO);
    let _ = host.launch(&bench.call(0), Duration::from_millis(10));
    drop(host);
}

#[test]
fn when_the_judge_is_killed_a_child_that_it_had_stopped_ends() {
    let judge = std::thread::spawn(|| {
        let bench = Bench::new(16);
        let host = bench.host(&[EMPTY]);
        let children = std::fs::read_to_string("/proc/thread-self/children").ok()?;
        let child = Pid::from_raw(children.split_whitespace().last()?.parse().ok()?)?;
        kill_process_group(child, Signal::STOP).unwrap();
        // What is killed lets go of nothing.
        std::mem::forget(host);
        Some(child)
    });
    let Some(child) = judge.join().unwrap() else { return eprintln!("skipped: this system does not list children") };
    let until = Instant::now() + LIMIT;
    loop {
        match waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
            Some((_, ended)) => break assert_eq!(ended.terminating_signal(), Some(Signal::KILL.as_raw())),
            None => assert!(Instant::now() < until, "it still stands there"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_image_that_does_not_load_is_told_in_words() {
    let bench = Bench::new(16);
    let image = bench.compiler.compile_trusted("other", "int other(void) { return 1; }", &["-O1"]).unwrap();
    let error = Host::start(&[&image], &bench.arena, &limits()).unwrap_err().to_string();
    assert!(error.contains("loading") && error.contains("ws_entry"), "{error}");
    let nobody = Limits { executable: Some("/bin/false".into()), ..Limits::default() };
    assert!(Host::start(&[], &bench.arena, &nobody).is_err());
}

#[test]
fn a_memory_bomb_gets_no_memory() {
    let bench = Bench::new(16);
    let text = "static void kernel(const float *x, float *y, int64_t n, float s) { char *p = malloc(1L << 40); y[0] = p != 0; free(p); }";
    let mut host = bench.host(&[text]);
    host.launch(&bench.call(0), LIMIT).unwrap();
    assert_eq!(bench.output()[0], 0.0);
}

#[test]
fn buffers_placed_after_the_start_are_seen() {
    let cache = tempfile::tempdir().unwrap();
    let compiler = Compiler::new(cache.path()).unwrap();
    let arena = Arena::new(1 << 20, 1 << 20).unwrap();
    let mut bench = Bench { cache, compiler, arena, x: Bench::new(1).x, y: Bench::new(1).y };
    let mut host = bench.host(&[SCALE]);
    for n in [10, 1000, 100_000] {
        bench.arena.reset();
        bench.x = bench.arena.place(Region::Inputs, n * 4).unwrap();
        bench.y = bench.arena.place(Region::Outputs, n * 4).unwrap();
        let x = bench.x;
        bench.arena.bytes_mut(&x).chunks_exact_mut(4).for_each(|four| four.copy_from_slice(&3f32.to_le_bytes()));
        host.launch(&bench.call(0), LIMIT).unwrap();
        assert!(bench.output().iter().all(|y| *y == 6.0));
    }
}

#[test]
fn ceilings_are_measured_once_and_kept() {
    let cache = tempfile::tempdir().unwrap();
    let compiler = Compiler::new(cache.path()).unwrap();
    let card = device_card(cache.path(), &compiler, &limits(), false).unwrap();
    let ceilings = &card.ceilings;
    assert!(ceilings.read_gb_s > 0.1 && ceilings.write_gb_s > 0.1 && ceilings.launch_us > 0.0, "{card:?}");
    // A vector's width of elements, one multiply-add in ten cycles of a slow core: below that something else was measured.
    let least = 2.0 * f64::from(card.vector_bits / 32) * 0.05;
    assert!(ceilings.gflops.len() == 3 && ceilings.gflops.values().all(|rate| *rate > least), "{card:?}");
    assert!(Dtype::ALL.iter().all(|dtype| ceilings.gflops[dtype] >= ceilings.gflops[&Dtype::F32]));
    assert_eq!(device_card(cache.path(), &compiler, &limits(), false).unwrap(), card);
    assert_ne!(device_card(cache.path(), &compiler, &limits(), true).unwrap().ceilings, card.ceilings);
}

#[test]
#[ignore = "prints figures: cargo test --release --test cpu_backend -- --ignored --nocapture"]
#[allow(clippy::print_stdout)]
fn figures() {
    let cache = tempfile::tempdir().unwrap();
    let compiler = Compiler::new(cache.path()).unwrap();
    for _ in 0..3 {
        let start = Instant::now();
        let card = device_card(cache.path(), &compiler, &limits(), true).unwrap();
        println!("{:.2} s: {:?}", start.elapsed().as_secs_f64(), card.ceilings);
    }
    let bench = Bench::new(4096);
    let mut host = bench.host(&[EMPTY, SCALE]);
    for (name, image) in [("empty", 0), ("ws_parallel", 1)] {
        let call = bench.call(image);
        let mut times: Vec<f64> = (0..3000).map(|_| host.launch(&call, LIMIT).unwrap().as_secs_f64() * 1e6).collect();
        times.sort_by(f64::total_cmp);
        let back = host.run(&vec![call; 1000], LIMIT).unwrap().as_secs_f64() * 1e3;
        println!(
            "{name}: median {:.1} us, p10 {:.1}, p90 {:.1}, p99 {:.1}; back to back {back:.2} us",
            times[1500], times[300], times[2700], times[2970]
        );
    }
}
