//! A socket at which the processes that this one starts reach its PyTorch. Importing PyTorch and its compilers takes ten seconds on some
//! machines; a session that takes one shall not wait for that, nor shall the three that follow it.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Weak};

use rustix::net::sockopt::socket_peercred;

use super::service::Service;

/// An abstract socket, which ends with the process. Whoever connects and descends from this process is handed on to PyTorch's.
#[derive(Debug)]
pub(super) struct Socket {
    name: String,
}

impl Socket {
    /// Listens for as long as it is held.
    pub(super) fn listen(service: &Arc<Service>) -> io::Result<Self> {
        let name = format!("warpsmith-torch-{}-{:016x}", std::process::id(), crate::rng::secret_seed());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let service = Arc::downgrade(service);
        std::thread::Builder::new().name("torch-socket".into()).spawn(move || hand_on(&listener, &service))?;
        Ok(Self { name })
    }

    /// Its name in the abstract namespace.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The thread wakes and finds that nobody has the service any more.
        drop(connect(&self.name));
    }
}

/// A connection to the process that listens at the socket of that name.
pub(super) fn connect(name: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)
}

fn hand_on(listener: &UnixListener, service: &Weak<Service>) {
    for line in listener.incoming() {
        let (Some(service), Ok(line)) = (service.upgrade(), line) else { return };
        // Whoever is not let in, or cannot be, finds the line closed.
        if !is_ours(&line) {
            tracing::warn!("somebody else asked for PyTorch's process");
            continue;
        }
        if let Err(error) = service.join(&line) {
            tracing::warn!(%error, "PyTorch's process cannot be shared");
        }
    }
}

/// Whether whoever is at the other end descends from this process: an agent's program, say, does not descend from the judge's.
fn is_ours(line: &UnixStream) -> bool {
    let mut process = socket_peercred(line).ok().map(|peer| peer.pid.as_raw_nonzero().get());
    while let Some(id) = process.filter(|id| *id > 1) {
        if u32::try_from(id) == Ok(std::process::id()) {
            return true;
        }
        process = parent_of(id);
    }
    false
}

fn parent_of(process: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}
