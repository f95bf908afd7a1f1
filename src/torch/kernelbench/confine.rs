//! How the processes of an evaluation are started: the judge's own, and those of candidates, behind walls.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process, set_child_subreaper};

use crate::sandbox::{FileWall, confine, end_with_us, offline_filter, offline_gpu_filter, single_filter};

/// What a candidate may read beside its Python: programs and libraries, what there is to know of the machine, random numbers.
const READ: [&str; 14] = [
    "/usr",
    "/bin",
    "/lib",
    "/lib64",
    "/sbin",
    "/opt",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/alternatives",
    "/etc/localtime",
    "/proc",
    "/sys",
    "/dev/urandom",
    "/dev/random",
];

/// What it may write beside its own folder: devices.
const WRITE: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/shm"];

/// What of the environment it is given.
const ENVIRONMENT: [&str; 11] = [
    "PATH",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "TORCH_CUDA_ARCH_LIST",
    "CC",
    "CXX",
    "LANG",
    "ONEDNN_MAX_CPU_ISA",
    "OMP_NUM_THREADS",
];

/// The largest file a candidate may write.
const LARGEST_FILE: u64 = 2 << 30;

/// How far a candidate is let out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wall {
    /// It may start compilers, in its folder: while it is built, and for the benchmark's own protocol.
    Building,
    /// It is one process for good.
    Alone,
}

/// A candidate's surroundings.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    /// Its own folder: what it builds, and nothing else, is there.
    pub folder: PathBuf,
    /// Files of its Python.
    pub paths: Vec<PathBuf>,
    /// Bytes of memory of its own, where that is limited.
    pub memory: Option<u64>,
    /// Whether it may use a GPU.
    pub gpu: bool,
}

/// The command that runs `source` in a Python of ours, ended with us.
pub(super) fn trusted(python: &Path, source: &str) -> Command {
    let mut command = Command::new(python);
    command.args(["-u", "-s", "-c", source]).process_group(0);
    command.env("ONEDNN_MAX_CPU_ISA", isa());
    end_with_us(&mut command);
    command
}

impl Cell {
    /// The command that runs `source` behind a wall.
    pub(super) fn command(&self, python: &Path, source: &str, wall: Wall) -> io::Result<Command> {
        let mut command = Command::new(python);
        command.args(["-u", "-s", "-c", source]).process_group(0).current_dir(&self.folder).env_clear();
        command.envs(ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        // Tools beside Python, such as ninja, are found as in its environment.
        let beside = python.parent().filter(|path| path.is_absolute()).map(Path::to_owned).into_iter();
        let path = std::env::var_os("PATH").unwrap_or_default();
        if let Ok(path) = std::env::join_paths(beside.chain(std::env::split_paths(&path))) {
            command.env("PATH", path);
        }
        command.env("ONEDNN_MAX_CPU_ISA", isa()).env("USER", "candidate").env("LOGNAME", "candidate");
        command.env("TORCHINDUCTOR_COMPILE_THREADS", "1").env("PYTHONDONTWRITEBYTECODE", "1");
        for name in
            ["HOME", "TMPDIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH"]
        {
            command.env(name, &self.folder);
        }
        let read: Vec<&Path> = READ.iter().map(Path::new).chain(self.paths.iter().map(PathBuf::as_path)).collect();
        let devices = if self.gpu { devices() } else { Vec::new() };
        let write = WRITE.iter().map(Path::new).chain(devices.iter().map(PathBuf::as_path));
        let write: Vec<&Path> = write.chain([self.folder.as_path()]).collect();
        let rules = FileWall::new(&read, &write).map_err(io::Error::other)?;
        let rules = if self.gpu { rules.with_own_threads() } else { rules };
        // A kernel without seccomp is reported by `protections`.
        let mut filters = Vec::from_iter(if self.gpu { offline_gpu_filter() } else { offline_filter() });
        if wall == Wall::Alone {
            filters.extend(single_filter().into_iter().flatten());
        }
        let mut limits = vec![(libc::RLIMIT_CORE as libc::c_int, 0), (libc::RLIMIT_FSIZE as libc::c_int, LARGEST_FILE)];
        limits.extend(self.memory.map(|memory| (libc::RLIMIT_DATA as libc::c_int, memory)));
        confine(&mut command, rules, filters, limits);
        Ok(command)
    }
}

/// On some virtual machines the processor lists AMX, and its instructions are illegal.
fn isa() -> String {
    std::env::var("ONEDNN_MAX_CPU_ISA").unwrap_or_else(|_| "AVX512_CORE_BF16".into())
}

/// What a GPU is reached through.
fn devices() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().starts_with("/dev/nvidia")).collect()
}

/// Whatever a candidate leaves behind becomes ours, so that [`end_strays`] finds it.
pub(super) fn adopt() -> io::Result<()> {
    Ok(set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Ends every process of ours but `known`, until there is none: what a candidate has started, however it hid it.
///
/// # Errors
/// Some do not end.
pub(super) fn end_strays(known: &[u32]) -> io::Result<usize> {
    let mut ended = 0;
    for _ in 0..1000 {
        let strays: Vec<u32> = children(std::process::id())?.into_iter().filter(|id| !known.contains(id)).collect();
        if strays.is_empty() {
            return Ok(ended);
        }
        for id in strays {
            let Some(pid) = Pid::from_raw(id.cast_signed()) else { continue };
            let _ = kill_process(pid, Signal::KILL);
            // Its own children come to us once it has been waited for.
            if rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG).is_ok_and(|it| it.is_some()) {
                ended += 1;
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Err(io::Error::other("processes that a candidate started do not end"))
}

/// The children of a process.
pub(super) fn children(of: u32) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // Behind the name, which may hold anything, come the state and the parent.
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        if parent == Some(of) {
            found.push(id);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::link::{Link, Silence};
    use super::*;
    use serde_json::{Value, json};
    use std::time::Duration;

    /// What a shell behind a wall says when it is asked to run `line`.
    fn behind(wall: Wall, line: &str) -> Result<Value, Silence> {
        behind_with(false, wall, line)
    }

    fn behind_with(gpu: bool, wall: Wall, line: &str) -> Result<Value, Silence> {
        let folder = tempfile::tempdir().unwrap();
        let cell = Cell { folder: folder.path().canonicalize().unwrap(), paths: Vec::new(), memory: None, gpu };
        let script = format!("read a; echo '{{}}' >&0; read a; {line}; echo \"{{\\\"code\\\": $?}}\" >&0; read a");
        let command = cell.command(Path::new("/bin/sh"), &script, wall).unwrap();
        let mut link = Link::start(command, &json!({})).unwrap();
        let _: Value = link.hello()?;
        link.ask(&json!({}), &[], Duration::from_secs(20))
    }

    #[test]
    fn what_builds_may_start_programs_and_what_is_judged_may_not() {
        assert_eq!(behind(Wall::Building, "/bin/true").unwrap(), json!({"code": 0}));
        let alone = behind(Wall::Alone, "/bin/true");
        assert!(matches!(&alone, Err(Silence::Died(how)) if how.contains("fork")), "{alone:?}");
        assert_eq!(behind(Wall::Alone, "true").unwrap(), json!({"code": 0}));
    }

    #[test]
    fn a_candidate_reads_and_writes_nothing_but_what_it_is_given() {
        if !crate::sandbox::protections()[0].available {
            return;
        }
        let secret = tempfile::tempdir().unwrap();
        let file = secret.path().join("answer");
        std::fs::write(&file, "42").unwrap();
        let read = behind(Wall::Alone, &format!("read x < {}", file.display())).unwrap_or(json!({"code": 2}));
        assert_ne!(read, json!({"code": 0}));
        assert_eq!(behind(Wall::Alone, "echo x > own").unwrap(), json!({"code": 0}));
        let judge = behind(Wall::Alone, &format!("read x < /proc/{}/environ", std::process::id()));
        assert_ne!(judge.unwrap_or(json!({"code": 2})), json!({"code": 0}));
    }

    #[test]
    fn what_uses_a_gpu_names_its_own_threads_and_nobody_elses() {
        if !crate::sandbox::protections()[0].available {
            return;
        }
        let own = "echo name > /proc/$$/task/$$/comm";
        assert_eq!(behind_with(true, Wall::Alone, own).unwrap(), json!({"code": 0}));
        assert_ne!(behind(Wall::Alone, own).unwrap_or(json!({"code": 2})), json!({"code": 0}));
        let judges = format!("echo name > /proc/{0}/task/{0}/comm", std::process::id());
        assert_ne!(behind_with(true, Wall::Alone, &judges).unwrap_or(json!({"code": 2})), json!({"code": 0}));
        let system = "echo 1 > /proc/sys/kernel/printk_delay";
        assert_ne!(behind_with(true, Wall::Alone, system).unwrap_or(json!({"code": 2})), json!({"code": 0}));
    }

    #[test]
    fn what_uses_a_gpu_binds_a_socket_of_its_own_and_reaches_nobody_by_it() {
        let python = "/usr/bin/python3";
        if !Path::new(python).exists() || offline_gpu_filter().is_err() {
            return;
        }
        let ends = |gpu: bool, text: &str| {
            let line = format!("{python} -c \"from socket import *; {text}\" 2>/dev/null");
            behind_with(gpu, Wall::Building, &line).unwrap_or(json!({"code": 2})) == json!({"code": 0})
        };
        let bind = "s = socket(AF_UNIX, SOCK_SEQPACKET); s.bind(chr(0) + 'warpsmith-test-' + str(id(s)))";
        assert!(ends(true, bind) && !ends(false, bind));
        for text in ["socket(AF_UNIX, SOCK_DGRAM)", "socket(AF_INET, SOCK_STREAM)", "socket(AF_NETLINK, SOCK_RAW)"] {
            assert!(!ends(true, text), "{text}");
        }
        assert!(!ends(true, "socket(AF_UNIX, SOCK_STREAM).connect('/run/none')"));
    }
}
