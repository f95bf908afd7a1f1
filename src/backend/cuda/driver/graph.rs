//! Launches recorded once and launched together.

use std::rc::Rc;

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstreamCaptureMode};

use super::error::CudaError;
use super::gpu::Gpu;
use super::module::Loaded;

/// Launches that start as one.
#[derive(Debug)]
pub struct Graph {
    gpu: Gpu,
    raw: CUgraphExec,
    /// What it launches must stay loaded.
    _modules: Vec<Rc<Loaded>>,
}

impl Gpu {
    /// Records what `launches` puts on the stream, without running it: launches, copies and fills on the device only.
    ///
    /// # Errors
    /// What `launches` or the driver refused.
    pub fn capture(&self, launches: impl FnOnce() -> Result<(), CudaError>) -> Result<Graph, CudaError> {
        self.settle()?;
        // SAFETY: the stream is alive and captures nothing.
        self.check("cuStreamBeginCapture", unsafe {
            sys::cuStreamBeginCapture_v2(self.inner.stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        })?;
        *self.inner.captured.borrow_mut() = Some(Vec::new());
        let recorded = launches();
        let mut modules = self.inner.captured.borrow_mut().take().unwrap_or_default();
        let mut graph: CUgraph = std::ptr::null_mut();
        // Capturing ends in any case, else the stream is stuck.
        // SAFETY: the stream is capturing; it writes one pointer.
        let ended = unsafe { sys::cuStreamEndCapture(self.inner.stream, &raw mut graph) };
        let ended = recorded.and_then(|()| self.check("cuStreamEndCapture", ended));
        if graph.is_null() {
            ended?;
            return Err(CudaError::Launch("nothing was recorded".into()));
        }
        let mut raw: CUgraphExec = std::ptr::null_mut();
        let made = ended.and_then(|()| {
            // SAFETY: the graph was just recorded; it writes one pointer.
            self.check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&raw mut raw, graph, 0) })
        });
        // SAFETY: ours; the executable graph does not need it.
        let _ = unsafe { sys::cuGraphDestroy(graph) };
        made?;
        modules.dedup_by(|a, b| Rc::ptr_eq(a, b));
        let graph = Graph { gpu: self.clone(), raw, _modules: modules };
        self.touched();
        // So that the first launch costs no more than the others.
        // SAFETY: graph and stream are alive.
        self.check("cuGraphUpload", unsafe { sys::cuGraphUpload(raw, self.inner.stream) })?;
        Ok(graph)
    }
}

impl Graph {
    /// Puts it on the stream.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn launch(&self) -> Result<(), CudaError> {
        self.gpu.ready()?;
        self.gpu.touched();
        // SAFETY: graph and stream are alive, and what it launches is loaded.
        self.gpu.check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.raw, self.gpu.inner.stream) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.gpu.may_release() {
            // SAFETY: instantiated once, destroyed once, and not running.
            let _ = unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}
