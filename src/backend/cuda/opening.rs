//! What takes a while before the first verdict: a compiler that gets ready, a device that is opened.

use std::cell::{OnceCell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::thread::JoinHandle;

use super::compile::Compiler;
use super::driver::{Gpu, installed_driver, retain_context};
use super::judge::{Build, Desk};

/// A compiler that gets ready while a device is opened: each takes a fifth of a second or more, and neither needs the other.
#[derive(Debug)]
pub struct Starting {
    pub(super) folder: PathBuf,
    compiler: JoinHandle<Result<Compiler, String>>,
}

impl Starting {
    /// Begins it; what the compiler makes is kept in `folder`, and so are the devices' ceilings. Where there will be much to
    /// compile, all of its processes start now (`python` is asked for Triton only where a file is in it); to a process that measures what others have compiled, they would be in the way.
    #[must_use]
    pub fn begin(folder: &Path, much: bool, python: Option<PathBuf>) -> Self {
        let folder = folder.to_owned();
        let kept = folder.clone();
        let compiler = std::thread::spawn(move || {
            let driver = installed_driver().map_err(|error| error.to_string())?;
            let compiler =
                if much { Compiler::warm(&kept, Some(driver)) } else { Compiler::new(&kept, Some(driver), None) };
            compiler.map(|compiler| compiler.with_python(python)).map_err(|error| error.to_string())
        });
        Self { folder, compiler }
    }

    /// Waits for it.
    pub(super) fn end(self) -> Result<Compiler, String> {
        self.compiler.join().unwrap_or_else(|_| Err("the compiler did not start".into()))
    }
}

/// The judge's desk on a device that is being opened.
#[derive(Debug)]
pub(super) struct Place {
    ordinal: u32,
    context: RefCell<Option<JoinHandle<()>>>,
    desk: OnceCell<Rc<Desk>>,
}

impl Place {
    /// Begins to open device `ordinal`: the context, which is the process's, is made by a thread that does nothing else.
    pub(super) fn begin(ordinal: u32) -> Self {
        let context = std::thread::spawn(move || {
            // Whoever opens the device meets the same failure.
            let _ = retain_context(ordinal);
        });
        Self { ordinal, context: RefCell::new(Some(context)), desk: OnceCell::new() }
    }

    /// The desk; the first call waits until the device is open and sets the desk up, with what `build` compiles.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn desk(&self, build: Build<'_>) -> Result<&Rc<Desk>, String> {
        if let Some(desk) = self.desk.get() {
            return Ok(desk);
        }
        if let Some(context) = self.context.take() {
            let _ = context.join();
        }
        let gpu =
            Gpu::open(self.ordinal).map_err(|error| format!("device {} cannot be opened: {error}", self.ordinal))?;
        let desk = Desk::new(&gpu, build)?;
        Ok(self.desk.get_or_init(|| desk))
    }

    /// The desk where it is set up.
    pub(super) fn opened(&self) -> Option<&Rc<Desk>> {
        self.desk.get()
    }
}
