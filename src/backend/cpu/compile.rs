//! From a kernel's text to a loadable image, through the system's C compiler.
//!
//! The text is hostile: it is read first (`sandbox::check_c`), compiled where no file but the compiler's own can be
//! opened, and what comes out is checked against an allow-list ([`super::elf`]). Results are cached by content.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::elf;
use crate::defence::{Defence, readers};
use crate::device::detect_cpu;
use crate::kernel::{KernelFile, Resolution};
use crate::op::Operation;
use crate::sandbox::{Finished, Jail, SourceError, check_c, check_preprocessed_c};

/// Wall-clock limit of one compilation.
const TIME: Duration = Duration::from_secs(60);
/// Bytes of the compiler's words that are kept.
const LOG_BYTES: usize = 8 << 10;
/// Address space of the compiler, bytes.
const MEMORY: u64 = 6 << 30;
/// The largest file a compilation may write, bytes.
const FILE: u64 = 64 << 20;

/// What every image is built with.
const ALWAYS: [&str; 4] = ["-std=gnu11", "-shared", "-fPIC", "-Wl,--build-id=none"];

/// Stands before every text. Some distributions' compilers (Ubuntu's) replace `memcpy` and its like by functions that check sizes
/// and that no kernel may call; others add that after all options, so that no option takes it back.
const PLAIN_CALLS: &str = "#undef _FORTIFY_SOURCE\n#line 1 \"unit.c\"\n";

/// What every candidate is built with. Errno and traps have no place in a kernel and keep loops from being vectorised;
/// neither changes a value. Without start-up files nothing is writable but what the loader relocates.
const CANDIDATE: [&str; 18] = [
    "-O3",
    "-march=native",
    "-fno-fast-math",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
    "-fvisibility=hidden",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-ident",
    "-nostartfiles",
    "-Wall",
    "-Wno-unused-function",
    "-Werror=implicit-function-declaration",
    "-Wl,-z,relro",
    "-Wl,-z,now",
    "-Wl,-z,noexecstack",
    "-Wl,-Bsymbolic",
];

/// What a program is built with that a sanitizer watches: flags of [`CANDIDATE`] that are not for an image, and what reports need.
const PROGRAM: [&str; 6] = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-lm", "-lpthread"];
/// Flags of [`CANDIDATE`] that such a program has too.
const LANGUAGE: usize = 7;

/// Runs a kernel in such a program.
const DRIVER: &str = include_str!("driver.c");

/// Options a kernel file may ask for, as written there and as the compiler knows them.
const OPTIONS: [(&str, &str); 7] = [
    ("-funroll-loops", "-funroll-loops"),
    ("-fno-unroll-loops", "-fno-unroll-loops"),
    ("fp-contract=off", "-ffp-contract=off"),
    ("fp-contract=fast", "-ffp-contract=fast"),
    ("-mprefer-vector-width=128", "-mprefer-vector-width=128"),
    ("-mprefer-vector-width=256", "-mprefer-vector-width=256"),
    ("-mprefer-vector-width=512", "-mprefer-vector-width=512"),
];

/// One thing to compile: a kernel at a resolution.
#[derive(Debug, Clone, Copy)]
pub struct Unit<'a> {
    /// The operation it computes.
    pub op: &'a Operation,
    /// The kernel file.
    pub kernel: &'a KernelFile,
    /// Its constants.
    pub resolution: &'a Resolution,
}

/// A compiled kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// What it was compiled from and by: BLAKE3, in hex.
    pub key: String,
    /// The shared object, in the compiler's cache.
    pub path: PathBuf,
    /// The compiler's warnings: data, cut and without paths of the machine.
    pub log: String,
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The machine has no working C compiler.
    #[error("no working C compiler: `{command}`: {why}; install one (Debian: apt install gcc libc6-dev) or set CC")]
    NoCompiler {
        /// What was tried.
        command: String,
        /// What it said.
        why: String,
    },
    /// The front matter asks for an option that is not allowed.
    #[error("option `{option}` is not allowed; allowed are {allowed}")]
    Option {
        /// The option.
        option: String,
        /// The ones there are.
        allowed: String,
    },
    /// The text contains what no kernel may.
    #[error("{0}")]
    Source(#[from] SourceError),
    /// The compiler does not accept it.
    #[error("the compiler refuses it:\n{log}")]
    Compiler {
        /// Its words, cut and without paths.
        log: String,
    },
    /// The compilation ran into a limit.
    #[error("compiling: {limit}")]
    Limit {
        /// Which.
        limit: String,
    },
    /// The image is not what a kernel may be.
    #[error("the compiled kernel is refused: {what}")]
    Image {
        /// Why.
        what: String,
    },
    /// The cache or a temporary folder failed.
    #[error("compiling in {}: {source}", place.display())]
    Io {
        /// Where.
        place: PathBuf,
        /// What happened.
        source: io::Error,
    },
}

/// The system's C compiler with a cache of what it made. It may be used from several threads at once.
#[derive(Debug, Clone)]
pub struct Compiler {
    cache: PathBuf,
    program: PathBuf,
    arguments: Vec<String>,
    search: String,
    identity: String,
    jail: Jail,
}

/// What distinguishes one compilation from another.
struct Job<'a> {
    name: &'a str,
    source: &'a str,
    flags: Vec<&'a str>,
    /// The candidate's own text, which error messages point into.
    shown: Option<&'a str>,
    checked: bool,
}

impl Compiler {
    /// Finds the compiler (`$CC`, else `cc`) and keeps what it makes under `cache_dir`.
    ///
    /// # Errors
    /// [`CompileError::NoCompiler`], or the cache cannot be made.
    pub fn new(cache_dir: &Path) -> Result<Self, CompileError> {
        let said = std::env::var("CC").ok().filter(|cc| !cc.trim().is_empty());
        Self::named(said.as_deref().unwrap_or("cc"), cache_dir)
    }

    /// The same with `said` for `$CC`: a program, found in `PATH` unless it is a path, and what it is always given.
    ///
    /// # Errors
    /// As [`Compiler::new`].
    pub fn named(said: &str, cache_dir: &Path) -> Result<Self, CompileError> {
        let io_error = |source| CompileError::Io { place: cache_dir.to_owned(), source };
        std::fs::create_dir_all(cache_dir).map_err(io_error)?;
        let cache = cache_dir.canonicalize().map_err(io_error)?;
        let no_compiler = |why: String| CompileError::NoCompiler { command: said.to_owned(), why };
        let search = std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".into());
        let mut words = said.split_whitespace().map(str::to_owned);
        let name = words.next().unwrap_or_default();
        let program = find(&name, &search).ok_or_else(|| no_compiler("not found in PATH".into()))?;
        let jail = Jail {
            read: readable(&program),
            write: vec![PathBuf::from("/dev/null")],
            time: TIME,
            memory: MEMORY,
            file: FILE,
            output: LOG_BYTES,
        };
        let cpu = detect_cpu().key;
        let mut compiler = Self { cache, program, arguments: words.collect(), search, identity: String::new(), jail };
        let scratch = compiler.scratch()?;
        let finished = compiler.spawn(scratch.path(), &["--version"])?;
        if !finished.status.success() {
            return Err(no_compiler(finished.output.lines().next().unwrap_or("it failed").to_owned()));
        }
        compiler.identity = format!("{}\n{:?}\n{cpu}", finished.output, compiler.arguments);
        Ok(compiler)
    }

    /// The first line of the compiler's own description.
    #[must_use]
    pub fn version(&self) -> &str {
        self.identity.lines().next().unwrap_or_default()
    }

    /// Compiles a kernel for one resolution.
    ///
    /// # Errors
    /// [`CompileError`]: the text, the compiler or the image.
    pub fn compile(&self, unit: &Unit<'_>) -> Result<Image, CompileError> {
        let source = super::candidate_source(unit.op, unit.kernel, unit.resolution);
        self.compile_candidate(&unit.op.name, &unit.kernel.text, &source, &unit.kernel.front.options)
    }

    /// Compiles a candidate whose whole translation unit is `source` (prelude, text, trampoline); `text` is the kernel
    /// file's own text, which is checked and which messages point into.
    ///
    /// # Errors
    /// [`CompileError`]: the text, the compiler or the image.
    pub fn compile_candidate(
        &self,
        name: &str,
        text: &str,
        source: &str,
        options: &[String],
    ) -> Result<Image, CompileError> {
        check_c(text)?;
        let flags = [&CANDIDATE[..], &flags_of(options)?].concat();
        self.build(&Job { name, source, flags, shown: Some(text), checked: true })
    }

    /// Builds a program named `program` in a folder of its own, with `flags` beside those that candidates are built with. With a
    /// kernel file's own text it is one that runs that kernel on a case; what the kernel's text becomes before it is compiled is
    /// the same as for an image, whatever the flags define.
    ///
    /// # Errors
    /// As [`Self::compile_candidate`].
    pub(super) fn program(
        &self,
        (name, text): (&str, Option<&str>),
        source: &str,
        options: &[String],
        flags: &[&str],
    ) -> Result<tempfile::TempDir, CompileError> {
        let scratch = self.scratch()?;
        let io_error = |source| CompileError::Io { place: scratch.path().to_owned(), source };
        let source = [PLAIN_CALLS, source].concat();
        std::fs::write(scratch.path().join("unit.c"), source).map_err(io_error)?;
        let own = flags_of(options)?;
        if let Some(text) = text {
            check_c(text)?;
            let preprocess = [&ALWAYS[..], &CANDIDATE, &own, &["-E", "-o", "unit.i", "unit.c"]].concat();
            self.step(scratch.path(), &preprocess)?;
            let seen = std::fs::read(scratch.path().join("unit.i")).map_err(io_error)?;
            if Defence::Preprocessed.stands() {
                check_preprocessed_c(&String::from_utf8_lossy(&seen), &format!("{name}.c"))?;
            }
            std::fs::write(scratch.path().join("driver.c"), DRIVER).map_err(io_error)?;
        }
        let units: &[&str] = if text.is_some() { &["unit.i", "driver.c"] } else { &["unit.c"] };
        let standard = &ALWAYS[..1];
        let arguments = [standard, &CANDIDATE[1..LANGUAGE], &own, &["-o", "program"], units, &PROGRAM, flags].concat();
        self.step(scratch.path(), &arguments)?;
        Ok(scratch)
    }

    /// What the compiler runs in.
    pub(super) const fn jail(&self) -> &Jail {
        &self.jail
    }

    /// Compiles the program's own C (oracles, calibration) with exactly `flags`; every symbol with default visibility
    /// is exported.
    ///
    /// # Errors
    /// [`CompileError`]: the compiler or the cache.
    pub fn compile_trusted(&self, name: &str, source: &str, flags: &[&str]) -> Result<Image, CompileError> {
        self.build(&Job { name, source, flags: flags.to_vec(), shown: None, checked: false })
    }

    fn build(&self, job: &Job<'_>) -> Result<Image, CompileError> {
        let key = self.key(job);
        let path = self.cache.join(format!("{key}.so"));
        let log_path = self.cache.join(format!("{key}.log"));
        let check = |bytes: &[u8]| if job.checked { elf::check(bytes) } else { Ok(()) };
        // The log is written before the image: an image without its log is from another program.
        if let (Ok(log), Ok(bytes)) = (std::fs::read_to_string(&log_path), std::fs::read(&path))
            && check(&bytes).is_ok()
        {
            return Ok(Image { key, path, log });
        }
        let scratch = self.scratch()?;
        let io_error = |source| CompileError::Io { place: scratch.path().to_owned(), source };
        let name: String = job.name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        // Messages quote the line from the file that `#line` names.
        if let Some(text) = job.shown {
            std::fs::write(scratch.path().join(format!("{name}.c")), text).map_err(io_error)?;
        }
        let source = [PLAIN_CALLS, job.source].concat();
        std::fs::write(scratch.path().join("unit.c"), source).map_err(io_error)?;
        let mut arguments = ALWAYS.to_vec();
        arguments.extend(&job.flags);
        let mut log = String::new();
        let mut unit = "unit.c";
        if job.checked {
            // What is compiled is what was read, to the letter.
            let preprocess = [&arguments[..], &["-E", "-o", "unit.i", unit]].concat();
            log = self.step(scratch.path(), &preprocess)?;
            unit = "unit.i";
            let seen = std::fs::read(scratch.path().join(unit)).map_err(io_error)?;
            if Defence::Preprocessed.stands() {
                check_preprocessed_c(&String::from_utf8_lossy(&seen), &format!("{name}.c"))?;
            }
        }
        arguments.extend(["-o", "unit.so", unit, "-lm"]);
        log.push_str(&self.step(scratch.path(), &arguments)?);
        let built = scratch.path().join("unit.so");
        let bytes = std::fs::read(&built).map_err(io_error)?;
        check(&bytes).map_err(|what| CompileError::Image { what })?;
        let made = scratch.path().join("unit.log");
        std::fs::write(&made, &log).map_err(io_error)?;
        std::fs::rename(&made, &log_path).map_err(io_error)?;
        std::fs::rename(&built, &path).map_err(io_error)?;
        Ok(Image { key, path, log })
    }

    /// One run of the compiler, and its words.
    fn step(&self, scratch: &Path, arguments: &[&str]) -> Result<String, CompileError> {
        let finished = self.spawn(scratch, arguments)?;
        let log = redact(&finished.output, scratch);
        if let Some(limit) = finished.limit {
            return Err(CompileError::Limit { limit });
        }
        if !finished.status.success() {
            let log = if log.is_empty() { format!("it ended with {}", finished.status) } else { log };
            return Err(CompileError::Compiler { log });
        }
        Ok(log)
    }

    fn key(&self, job: &Job<'_>) -> String {
        let mut hasher = blake3::Hasher::new();
        let always = [PLAIN_CALLS, &ALWAYS.join(" ")].concat();
        let shown = job.shown.unwrap_or_default();
        for part in [&always, job.source, shown, &job.flags.join(" "), &self.identity, &readers()] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        hasher.update(&[u8::from(job.checked)]).finalize().to_hex().to_string()
    }

    /// A folder of its own beside the cache, so that renaming into it is atomic.
    fn scratch(&self) -> Result<tempfile::TempDir, CompileError> {
        tempfile::Builder::new()
            .prefix("compile-")
            .tempdir_in(&self.cache)
            .map_err(|source| CompileError::Io { place: self.cache.clone(), source })
    }

    fn spawn(&self, scratch: &Path, arguments: &[&str]) -> Result<Finished, CompileError> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).args(arguments).current_dir(scratch);
        let mut jail = self.jail.clone();
        jail.write.push(scratch.to_owned());
        let folder = scratch.to_string_lossy();
        jail.run(command, &[("PATH", &self.search), ("TMPDIR", &folder), ("LC_ALL", "C")]).map_err(|error| {
            CompileError::NoCompiler { command: self.program.display().to_string(), why: error.to_string() }
        })
    }
}

/// The compiler's flags for options of a kernel file.
fn flags_of(options: &[String]) -> Result<Vec<&'static str>, CompileError> {
    let flag = |option: &String| {
        let known = OPTIONS.iter().find(|(name, flag)| name == option || flag == option);
        let unknown =
            || CompileError::Option { option: option.clone(), allowed: OPTIONS.map(|(name, _)| name).join(", ") };
        known.map(|(_, flag)| *flag).ok_or_else(unknown)
    };
    options.iter().map(flag).collect()
}

fn find(name: &str, search: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Path::new(name).canonicalize().ok();
    }
    // Not resolved further: what a compiler does may depend on the name it is called by.
    search.split(':').map(|folder| Path::new(folder).join(name)).find(|path| path.is_file())
}

/// The folders a compiler lives in: the system's own, and its own prefix where it is elsewhere.
fn readable(program: &Path) -> Vec<PathBuf> {
    let system = [
        "/bin",
        "/lib",
        "/lib32",
        "/lib64",
        "/usr/bin",
        "/usr/lib",
        "/usr/lib32",
        "/usr/lib64",
        "/usr/libexec",
        "/usr/include",
        "/usr/x86_64-linux-gnu",
        "/usr/aarch64-linux-gnu",
        "/etc/ld.so.cache",
        "/etc/alternatives",
        "/nix/store",
        "/gnu/store",
    ];
    let mut folders: Vec<PathBuf> = system.iter().map(PathBuf::from).collect();
    for program in [Some(program.to_owned()), program.canonicalize().ok()].into_iter().flatten() {
        let Some(folder) = program.parent() else { continue };
        if folders.iter().any(|known| folder.starts_with(known)) {
            continue;
        }
        folders.push(folder.to_owned());
        if let Some(prefix) = folder.parent().filter(|_| folder.ends_with("bin")) {
            folders.extend(["lib", "lib64", "libexec", "include", "share"].map(|name| prefix.join(name)));
        }
    }
    folders
}

/// The compiler's words without the machine's paths: of an absolute path only the last name stays.
pub(super) fn redact(log: &str, scratch: &Path) -> String {
    let log = log.replace(&*scratch.to_string_lossy(), ".");
    let mut out = String::with_capacity(log.len());
    let mut rest = log.as_str();
    let mut before = ' ';
    let in_path = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | '~' | '@');
    while let Some(c) = rest.chars().next() {
        let starts = c == '/'
            && !in_path(before)
            && rest[1..].starts_with(|c: char| c.is_alphanumeric() || matches!(c, '.' | '_'));
        if starts {
            let end = rest.find(|c| !in_path(c)).unwrap_or(rest.len());
            out.push_str(rest[..end].trim_end_matches('/').rsplit('/').next().unwrap_or_default());
            rest = &rest[end..];
            before = '/';
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            before = c;
        }
    }
    out
}
