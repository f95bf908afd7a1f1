//! A door to PyTorch's process for other processes of this program. Importing PyTorch and its compilers takes ten seconds on some
//! machines; a session that takes one shall not wait for that, nor shall the three that follow it.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use tempfile::TempDir;

use super::service::Service;

/// A socket in a folder that only this user may enter. Whoever connects is handed on to the process.
#[derive(Debug)]
pub(super) struct Door {
    path: PathBuf,
    _folder: TempDir,
}

impl Door {
    /// Opens it, for as long as it is held.
    pub(super) fn open(service: &Arc<Service>) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("warpsmith-torch").tempdir()?;
        let path = folder.path().join("door");
        let listener = UnixListener::bind(&path)?;
        let service = Arc::downgrade(service);
        std::thread::Builder::new().name("torch-door".into()).spawn(move || hand_on(&listener, &service))?;
        Ok(Self { path, _folder: folder })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // The thread wakes and finds that nobody has the service any more.
        drop(UnixStream::connect(&self.path));
    }
}

fn hand_on(listener: &UnixListener, service: &Weak<Service>) {
    for line in listener.incoming() {
        let (Some(service), Ok(line)) = (service.upgrade(), line) else { return };
        // Whoever connected finds the line closed.
        if let Err(error) = service.join(&line) {
            tracing::warn!(%error, "PyTorch's process cannot be shared");
        }
    }
}
