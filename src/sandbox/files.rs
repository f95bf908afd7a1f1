//! Landlock: which files a process may open from now on.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};

/// The newest interface asked for; an older kernel gives what it has.
const NEWEST: ABI = ABI::V6;

/// A set of rules, made before a process starts and entered by it: entering allocates nothing, so it may be done
/// between fork and exec.
#[derive(Debug)]
pub struct FileWall {
    rules: RulesetCreated,
    /// Whether a process may write what `/proc` has of its own threads.
    own_threads: bool,
}

impl FileWall {
    /// Files beneath `read` may be read and executed, beneath `write` anything; a path that does not exist is skipped.
    /// No network, no signals to other processes.
    ///
    /// # Errors
    /// The kernel refuses the rules; a kernel that does not know Landlock is not an error.
    pub fn new(read: &[&Path], write: &[&Path]) -> Result<Self, RulesetError> {
        let mut rules = empty()?;
        for (paths, file, directory) in [
            (read, AccessFs::Execute | AccessFs::ReadFile, AccessFs::from_read(NEWEST)),
            (write, AccessFs::from_file(NEWEST), AccessFs::from_all(NEWEST)),
        ] {
            for path in paths {
                let access = if path.is_dir() { directory } else { file };
                if let Ok(fd) = PathFd::new(path) {
                    rules = rules.add_rule(PathBeneath::new(fd, access))?;
                }
            }
        }
        Ok(Self { rules, own_threads: false })
    }

    /// The process that enters may write the files that `/proc` has of its own threads: CUDA's driver names its threads there, and does not start
    /// where it cannot.
    #[must_use]
    pub fn with_own_threads(self) -> Self {
        Self { own_threads: true, ..self }
    }

    /// Confines the calling thread, and what it starts, for good.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn enter(self) -> Result<(), RulesetError> {
        let mut rules = self.rules;
        if self.own_threads
            && let Ok(own) = PathFd::new("/proc/self/task")
        {
            rules = rules.add_rule(PathBeneath::new(own, AccessFs::WriteFile | AccessFs::Truncate))?;
        }
        rules.restrict_self().map(|_| ())
    }
}

/// No file, no network, no signal to another process, for the calling thread and what it starts.
///
/// # Errors
/// The kernel refuses; a kernel that does not know Landlock is not an error.
pub fn confine_to_nothing() -> Result<(), RulesetError> {
    FileWall { rules: empty()?, own_threads: false }.enter()
}

fn empty() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()
}
