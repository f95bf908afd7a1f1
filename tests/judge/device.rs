//! The judge on a device that is not a processor: kernels run in the judge's own process and could write to their inputs,
//! the oracle is dear, and the user has a library. All but that is done by the processor.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use warpsmith::backend::cpu::{self, Cpu};
use warpsmith::backend::{
    Arena, BuildError, Call, CaseLimits, CaseMemory, Conditions, Device, Disturbed, Fault, Host, Image, Lent,
    MemoryError, Oracles, Placing, Poison, Ready, Region, Source, Span, StartError, Step, Toolchain,
};
use warpsmith::device::{Ceilings, DeviceCard};
use warpsmith::evaluation::{ErrorStats, Evaluation, Stage, Verdict};
use warpsmith::harness::{Block, Elsewhere, EvaluationTask, Failure, Judge, Progress, Session, SessionTask, Watch};
use warpsmith::kernel::{FrontMatter, KernelFile, Resolution};
use warpsmith::op::{DrawPlan, Dtype, Operation, Sample, Shape};

use crate::bench::{edit, task};
use crate::honest::small;

static GO: AtomicBool = AtomicBool::new(false);

/// What the tests turn, and what they look at.
#[derive(Default)]
struct Knobs {
    macs_twice: u64,
    changes_inputs: Cell<bool>,
    library: Option<String>,
    lost: Cell<bool>,
    compared: Arc<AtomicUsize>,
    /// Compiles one after the other, the last first, and tells of each.
    in_turn: Cell<bool>,
    /// What had been compared when the last of them began.
    early: Cell<usize>,
    /// Bytes that its compiler asks for, for each row.
    own_of_a_row: Cell<usize>,
    /// Its compiler is given constants of which the code names none but the type.
    names_none: Cell<bool>,
    /// Sets of constants that were compiled.
    compiled: Cell<usize>,
}

/// What the processor's compiler makes, which asks for memory of its own.
#[derive(Clone, Debug)]
struct Made {
    inner: cpu::Image,
    own_of_a_row: usize,
}

impl Image for Made {
    fn log(&self) -> &str {
        self.inner.log()
    }
    fn own_scratch(&self, ints: &[i64]) -> Vec<usize> {
        (self.own_of_a_row > 0).then(|| self.own_of_a_row * ints[0] as usize).into_iter().collect()
    }
}

struct Other {
    cpu: Cpu,
    knobs: Rc<Knobs>,
}

struct Memory {
    inner: cpu::Arena,
    knobs: Rc<Knobs>,
}

struct Runner(cpu::Host);

impl Arena for Memory {
    fn footprint(bytes: usize, placing: Placing) -> usize {
        <cpu::Arena as Arena>::footprint(bytes, placing)
    }
    fn red_zones(&self, span: &Span) -> [Span; 2] {
        Arena::red_zones(&self.inner, span)
    }
    fn place(&mut self, region: Region, bytes: usize) -> Result<Span, MemoryError> {
        Ok(self.inner.place(region, bytes)?)
    }
    fn reset(&mut self) {
        self.inner.reset();
    }
    fn draw(&mut self, span: &Span, plan: &DrawPlan) {
        self.inner.draw(span, plan);
    }
    fn poison(&mut self, stretches: &[Poison]) {
        self.inner.poison(stretches);
    }
    fn disturbed(&mut self, stretches: &[Poison]) -> Option<Disturbed> {
        self.inner.disturbed(stretches)
    }
    fn zero(&mut self, span: &Span) {
        self.inner.zero(span);
    }
    fn not_zero(&mut self, span: &Span) -> Option<usize> {
        self.inner.not_zero(span)
    }
    fn fill(&mut self, span: &Span, write: &mut dyn FnMut(&mut [u8])) {
        self.inner.fill(span, write);
    }
    fn read(&mut self, span: &Span) -> Vec<u8> {
        self.inner.read(span)
    }
    fn gather(&mut self, span: &Span, size: usize, indices: &[usize]) -> Vec<u8> {
        self.inner.gather(span, size, indices)
    }
    fn poke(&mut self, span: &Span, at: usize, bytes: &[u8]) {
        self.inner.poke(span, at, bytes);
    }
    fn lend(&mut self, region: Region) -> Result<Option<Lent>, MemoryError> {
        self.inner.lend(region)
    }
    fn changed_input(&mut self, inputs: &[Span]) -> Option<usize> {
        self.knobs.changes_inputs.get().then(|| inputs.len() - 1)
    }
}

impl Host for Runner {
    type Arena = Memory;
    type Taken = Vec<Vec<u8>>;

    fn launch(&mut self, call: &Call, limit: Duration) -> Result<Duration, Fault> {
        self.0.launch(call, limit)
    }
    fn run(&mut self, calls: &[Call], limit: Duration) -> Result<Duration, Fault> {
        self.0.run(calls, limit)
    }
    fn idle_check(&self) -> Result<(), Fault> {
        self.0.idle_check()
    }
    fn stands(taken: &Vec<Vec<u8>>, memory: &CaseMemory, arena: &mut Memory, copy: usize) -> bool {
        cpu::Host::stands(taken, memory, &mut arena.inner, copy)
    }
    fn take(&self, memory: &CaseMemory, arena: &mut Memory, copy: usize) -> Vec<Vec<u8>> {
        self.0.take(memory, &mut arena.inner, copy)
    }
}

impl Other {
    fn made(&self, inner: cpu::Image) -> Made {
        Made { inner, own_of_a_row: self.knobs.own_of_a_row.get() }
    }
}

impl Device for Other {
    type Image = Made;
    type Arena = Memory;
    type Host = Runner;

    fn card(&self) -> &DeviceCard {
        self.cpu.card()
    }
    fn case_limits(&self) -> CaseLimits {
        CaseLimits { macs_twice: self.knobs.macs_twice, ..self.cpu.case_limits() }
    }
    fn free_memory(&self) -> Option<u64> {
        None
    }
    fn arena(&self, inputs: usize, outputs: usize, placing: Placing) -> Result<Memory, MemoryError> {
        Ok(Memory { inner: self.cpu.arena(inputs, outputs, placing)?, knobs: self.knobs.clone() })
    }
    fn host(&self, images: &[&Made], arena: &Memory, conditions: &Conditions) -> Result<Runner, StartError> {
        let images: Vec<&cpu::Image> = images.iter().map(|image| &image.inner).collect();
        self.cpu.host(&images, &arena.inner, conditions).map(Runner)
    }
    fn calls_per_sample(&self, incumbent_us: f64, copies: usize) -> usize {
        self.cpu.calls_per_sample(incumbent_us, copies)
    }
    fn hosts_are_processes(&self) -> bool {
        false
    }
    fn is_lost(&self) -> bool {
        self.knobs.lost.get()
    }
}

impl Toolchain for Other {
    fn accepts(&self, front: &FrontMatter) -> Result<(), String> {
        self.cpu.accepts(front)
    }
    fn compile(
        &self,
        op: &Operation,
        files: &[Source<'_>],
        cancelled: &AtomicBool,
    ) -> Result<Vec<Vec<Made>>, BuildError> {
        let sets = files.iter().map(|file| file.resolutions.len()).sum::<usize>();
        self.knobs.compiled.set(self.knobs.compiled.get() + sets);
        let all = self.cpu.compile(op, files, cancelled)?;
        Ok(all.into_iter().map(|of_file| of_file.into_iter().map(|image| self.made(image)).collect()).collect())
    }
    fn compile_in_turn(
        &self,
        op: &Operation,
        files: &[Source<'_>],
        cancelled: &AtomicBool,
        ready: &mut dyn FnMut(Vec<Ready<Made>>),
    ) -> Result<Vec<Vec<Made>>, BuildError> {
        if self.knobs.in_turn.get() {
            let all = |(file, source): (usize, &Source<'_>)| (0..source.resolutions.len()).map(move |at| (file, at));
            let places = files.iter().enumerate().flat_map(all);
            for (file, at) in places.collect::<Vec<_>>().into_iter().rev() {
                self.knobs.early.set(self.knobs.compared.load(Ordering::Relaxed));
                let Source { kernel, resolutions, .. } = files[file];
                let mut image =
                    self.cpu.compile(op, &[Source::new(kernel, &resolutions[at..=at])], cancelled)?.concat();
                ready(vec![(file, at, self.made(image.remove(0)))]);
            }
        }
        self.compile(op, files, cancelled)
    }
    fn compile_key(&self, _: &Operation, _: &KernelFile, resolution: &Resolution) -> Option<String> {
        self.knobs.names_none.get().then(|| resolution.dtype.to_string())
    }
    fn relaunched(&self, _: &Operation, _: &KernelFile, _: &Resolution, code: &Made) -> Option<Made> {
        Some(code.clone())
    }
    fn glue(&self, step: Step, dtype: Dtype) -> Result<Made, BuildError> {
        self.cpu.glue(step, dtype).map(|image| self.made(image))
    }
    fn library(&self, op: &Operation, shape: &Shape, dtype: Dtype) -> Option<(Made, &'static str)> {
        let kernel = KernelFile::parse(self.knobs.library.as_ref()?).unwrap();
        let resolution = kernel.resolve(shape, dtype, &self.card().facts).unwrap();
        let mut images = self.cpu.compile(op, &[Source::new(&kernel, &[resolution])], &GO).unwrap().concat();
        Some((self.made(images.remove(0)), "a library"))
    }
}

impl Oracles for Other {
    type Oracle = cpu::Oracle;

    fn oracle(&self, op: &Operation) -> Result<cpu::Oracle, String> {
        self.cpu.oracle(op)
    }
    fn compare(
        &self,
        oracle: &cpu::Oracle,
        memory: &CaseMemory,
        arena: &mut Memory,
        copy: usize,
        taken: &Vec<Vec<u8>>,
        seed: u64,
    ) -> Result<ErrorStats, String> {
        self.knobs.compared.fetch_add(1, Ordering::Relaxed);
        self.cpu.compare(oracle, memory, &mut arena.inner, copy, taken, seed)
    }
    fn compare_some(
        &self,
        oracle: &cpu::Oracle,
        memory: &CaseMemory,
        arena: &mut Memory,
        copy: usize,
        sample: &Sample,
    ) -> Result<ErrorStats, String> {
        self.cpu.compare_some(oracle, memory, &mut arena.inner, copy, sample)
    }
}

/// Measures nothing: the library takes three times as long as any kernel.
#[derive(Default)]
struct Paper {
    asked: Rc<RefCell<Vec<SessionTask>>>,
}

impl Elsewhere for Paper {
    fn sessions(&self, tasks: &[SessionTask], _: Option<&str>, _: Watch<'_>) -> Result<Vec<Session>, Failure> {
        self.asked.borrow_mut().extend_from_slice(tasks);
        let session = |task: &SessionTask| {
            let incumbent = if task.incumbent.is_none() { 3.0 } else { 1.0 };
            let block = Block { incumbent_us: vec![incumbent], candidate_us: vec![1.0] };
            Session { blocks: vec![block; 16], took_s: 0.1, hidden_us: 0.0, taken_again: [0; 2] }
        };
        Ok(tasks.iter().map(session).collect())
    }
}

/// A judge on such a device, and whom it asks for sessions.
fn judge(knobs: Knobs) -> (Judge<Other>, Rc<Knobs>, Rc<RefCell<Vec<SessionTask>>>) {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let card = DeviceCard {
        backend: "other".into(),
        name: "another device".into(),
        key: "other-1".into(),
        cores: 2,
        vector_bits: 256,
        l1_bytes: 32 << 10,
        l2_bytes: 1 << 20,
        l3_bytes: 0,
        cold_bytes: 1 << 20,
        facts: [("CORES", 2), ("L1", 32 << 10), ("L2", 1 << 20), ("VECTOR_BYTES", 32)]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        ceilings: Ceilings { read_gb_s: 1e6, write_gb_s: 1e6, gflops: [].into(), launch_us: 0.0, shown: [].into() },
    };
    let limits = cpu::Limits { executable: Some(env!("CARGO_BIN_EXE_warpsmith").into()), ..cpu::Limits::default() };
    let knobs = Rc::new(knobs);
    let cpu = Cpu::new(cpu::Compiler::new(&cache).unwrap(), card, limits);
    let paper = Paper::default();
    let asked = paper.asked.clone();
    let judge = Judge::new(Other { cpu, knobs: knobs.clone() }).with_elsewhere(Box::new(paper));
    (judge, knobs, asked)
}

fn base(judge: &mut Judge<Other>, candidate: &str) -> Evaluation {
    base_telling(judge, candidate, &|_| {})
}

fn base_telling(judge: &mut Judge<Other>, candidate: &str, progress: &(dyn Fn(Progress) + Sync)) -> Evaluation {
    let task = EvaluationTask { incumbent: None, precision: None, ..task("rmsnorm", candidate, candidate) };
    judge.evaluate(&task, Watch { progress, cancelled: &GO }).unwrap()
}

/// Cases of stage 1.
fn smoke(judge: &mut Judge<Other>) -> usize {
    let task = task("rmsnorm", small("rmsnorm"), small("rmsnorm"));
    let evaluation = judge.smoke(&task, Watch { progress: &|_| {}, cancelled: &GO }).unwrap();
    assert_eq!(evaluation.verdict, Verdict::Base);
    evaluation.cases.len()
}

#[test]
fn where_the_oracle_is_dear_each_ordinary_case_is_compared_once_after_an_element_has_changed() {
    let (mut judge, knobs, _) = judge(Knobs::default());
    let evaluation = base(&mut judge, small("rmsnorm"));
    assert_eq!(evaluation.verdict, Verdict::Base);
    assert!(evaluation.cases.iter().all(|case| case.errors.elements > 0 && case.failure.is_none()));
    knobs.compared.store(0, Ordering::Relaxed);
    assert_eq!((smoke(&mut judge), knobs.compared.load(Ordering::Relaxed)), (3, 3));
    let lazy = edit(small("rmsnorm"), &[("y[r * cols + j] = ws_store(v);", "")]);
    let verdict = base(&mut judge, &lazy).verdict;
    assert!(verdict.status() == "reject" && verdict.why().contains("outside their bound"), "{verdict:?}");
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn what_is_compiled_is_judged_while_the_rest_is_being_compiled_and_everything_once() {
    let (mut judge, knobs, _) = judge(Knobs::default());
    let evaluate = |judge: &mut Judge<Other>, in_turn| {
        knobs.in_turn.set(in_turn);
        knobs.compared.store(0, Ordering::Relaxed);
        // How often a timed output is compared depends on how many blocks noise asks for.
        let before_timing = AtomicUsize::new(usize::MAX);
        let compared = knobs.compared.clone();
        let evaluation = base_telling(judge, small("rmsnorm"), &|progress| {
            if progress.stage == Stage::Timing {
                before_timing.fetch_min(compared.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        });
        assert_eq!(evaluation.verdict, Verdict::Base);
        (evaluation.cases, before_timing.into_inner())
    };
    let at_once = evaluate(&mut judge, false);
    let in_turn = evaluate(&mut judge, true);
    assert!(knobs.early.get() > 0, "nothing was judged before everything was compiled");
    assert!(at_once == in_turn, "another order, other inputs, or a case left out or judged twice");
}

#[test]
fn what_does_not_compile_is_told_first_whatever_was_found_meanwhile() {
    let (mut judge, knobs, _) = judge(Knobs::default());
    knobs.in_turn.set(true);
    let wrong = edit(small("rmsnorm"), &[("y[r * cols + j] = ws_store(v);", "")]);
    let verdict = base(&mut judge, &wrong).verdict;
    assert!(verdict.status() == "reject" && verdict.stage() == Stage::Smoke, "{verdict:?}");
    assert!(knobs.early.get() > 0);
    // f16 comes last, when bf16 and f32 have been found wrong.
    let broken = format!("{wrong}\n#if WS_F16\n#error it serves no f16\n#endif\n");
    let verdict = base(&mut judge, &broken).verdict;
    assert!(verdict.status() == "error" && verdict.why().contains("it serves no f16"), "{verdict:?}");
}

#[test]
fn elsewhere_a_small_case_is_compared_twice() {
    let (mut judge, knobs, _) = judge(Knobs { macs_twice: u64::MAX, ..Knobs::default() });
    assert_eq!((smoke(&mut judge), knobs.compared.load(Ordering::Relaxed)), (3, 6));
}

#[test]
fn a_kernel_that_writes_to_its_inputs_is_told_which() {
    let (mut judge, knobs, _) = judge(Knobs::default());
    knobs.changes_inputs.set(true);
    let verdict = base(&mut judge, small("rmsnorm")).verdict;
    assert!(verdict.status() == "reject" && verdict.why().ends_with("it wrote to its input `weight`"), "{verdict:?}");
}

#[test]
fn some_sessions_of_a_start_are_asked_of_other_processes_each_with_a_number_of_its_own() {
    let (mut judge, _, asked) = judge(Knobs::default());
    let evaluation = base(&mut judge, small("rmsnorm"));
    assert_eq!((evaluation.vs_user, evaluation.against), (Some(1.0), None));
    let asked = asked.borrow();
    assert_eq!(asked.iter().map(|task| task.number).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(asked.iter().all(|task| task.incumbent.as_deref() == Some(small("rmsnorm")) && task.candidate.len() > 100));
    assert!(
        asked.iter().all(|task| task.candidate != small("rmsnorm")),
        "the other side is a copy elsewhere in memory"
    );
}

#[test]
fn a_start_is_measured_against_the_library_that_the_user_has() {
    let library = Some(small("rmsnorm").to_owned());
    let (mut judge, _, asked) = judge(Knobs { library, ..Knobs::default() });
    let evaluation = base(&mut judge, small("rmsnorm"));
    assert_eq!(evaluation.verdict, Verdict::Base);
    // The library is the same kernel, measured here: where a run begins is no decision.
    assert!((0.2..5.0).contains(&evaluation.vs_user.unwrap()), "{:?}", evaluation.vs_user);
    assert_eq!(evaluation.against.as_deref(), Some("a library"));
    assert!(asked.borrow().iter().all(|task| task.incumbent.is_some()));
}

#[test]
fn a_session_here_can_be_against_the_library() {
    let library = Some(small("rmsnorm").to_owned());
    let (mut judge, ..) = judge(Knobs { library, ..Knobs::default() });
    let asked = task("rmsnorm", small("rmsnorm"), small("rmsnorm"));
    let session = SessionTask {
        op: asked.op,
        incumbent: None,
        candidate: asked.candidate,
        target: asked.target,
        rounds: 2,
        seed: 5,
        asks: false,
        number: 3,
    };
    let answer = judge.session(&session, Watch { progress: &|_| {}, cancelled: &GO }).unwrap();
    let warpsmith::harness::SessionAnswer::Measured(session) = answer else { panic!("{answer:?}") };
    assert_eq!(session.blocks.len(), 16);
    assert!(session.blocks.iter().all(|block| block.incumbent_us[0] > 0.0));
}

#[test]
fn a_screen_ends_where_the_device_is_lost() {
    let (mut judge, knobs, _) = judge(Knobs::default());
    let asked = task("rmsnorm", small("rmsnorm"), small("rmsnorm"));
    let screen = warpsmith::harness::ScreenTask {
        op: asked.op,
        incumbent: asked.candidate.clone(),
        candidates: vec![asked.candidate; 2],
        target: asked.target,
        seed: 1,
    };
    let watch = Watch { progress: &|_| {}, cancelled: &GO };
    assert_eq!(judge.screen(&screen, watch).unwrap().len(), 2);
    knobs.lost.set(true);
    assert_eq!(judge.screen(&screen, watch).unwrap(), []);
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn memory_that_a_compiler_asks_for_is_placed_once_it_is_known_and_more_than_there_may_be_is_refused() {
    let (mut judge, knobs, _) = judge(Knobs::default());
    let plain = base(&mut judge, small("rmsnorm"));
    knobs.own_of_a_row.set(4096);
    for in_turn in [false, true] {
        knobs.in_turn.set(in_turn);
        let evaluation = base(&mut judge, small("rmsnorm"));
        assert_eq!(evaluation.verdict, Verdict::Base);
        assert_eq!(evaluation.cases.len(), plain.cases.len());
    }
    knobs.own_of_a_row.set(1 << 30);
    for in_turn in [false, true] {
        knobs.in_turn.set(in_turn);
        let verdict = base(&mut judge, small("rmsnorm")).verdict;
        assert!(
            verdict.status() == "error" && verdict.why().contains("its scratch is larger than 512 MiB"),
            "{verdict:?}"
        );
    }
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn an_examination_compiles_no_text_again_for_sizes_that_change_its_launches_alone() {
    let (mut judge, knobs, _) = judge(Knobs::default());
    knobs.names_none.set(true);
    // Each shape has its own constant, which the code does not name.
    let honest = edit(small("rmsnorm"), &[("---*/", "[let]\nAREA = \"rows * cols\"\n---*/")]);
    let wrong = edit(&honest, &[("+ eps);", "+ eps) + (rows % 4 == 3 && cols % 8 == 5);")]);
    knobs.in_turn.set(true);
    assert_eq!(base(&mut judge, &wrong).verdict, Verdict::Base);
    let stages = knobs.compiled.replace(0);
    let task = task("rmsnorm", &wrong, &wrong);
    let task = EvaluationTask { incumbent: None, precision: None, look: true, examination_s: 600.0, ..task };
    let evaluation = judge.evaluate(&task, Watch { progress: &|_| {}, cancelled: &GO }).unwrap();
    let asked: u32 = evaluation.examination.iter().flat_map(|found| found.asked.values()).sum();
    let (verdict, compiled) = (&evaluation.verdict, knobs.compiled.get());
    assert!(verdict.why().contains("outside their bound"), "{verdict:?}");
    assert!(asked > 6 && compiled <= stages + 3, "{asked} questions, {compiled} compilations, {stages} before");
}
