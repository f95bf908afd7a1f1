//! Marks on the stream, and the time between them.

use cudarc::driver::sys::{self, CUevent, CUevent_flags};

use super::error::CudaError;
use super::gpu::Gpu;

/// A mark on the stream that remembers when it was reached.
#[derive(Debug)]
pub struct Event {
    gpu: Gpu,
    raw: CUevent,
}

impl Gpu {
    /// A new event, not on the stream yet.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn event(&self) -> Result<Event, CudaError> {
        self.ready()?;
        let mut raw: CUevent = std::ptr::null_mut();
        // SAFETY: a context is current; it writes one pointer.
        self.check("cuEventCreate", unsafe {
            sys::cuEventCreate(&raw mut raw, CUevent_flags::CU_EVENT_DEFAULT as u32)
        })?;
        Ok(Event { gpu: self.clone(), raw })
    }

    /// Time between two events that were reached, µs.
    ///
    /// # Errors
    /// One was not recorded or not reached.
    pub fn elapsed_us(&self, begin: &Event, end: &Event) -> Result<f64, CudaError> {
        self.ready()?;
        let mut milliseconds = 0f32;
        // SAFETY: both events are alive; it writes one float.
        self.check("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime(&raw mut milliseconds, begin.raw, end.raw)
        })?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl Event {
    /// Puts it on the stream.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn record(&self) -> Result<(), CudaError> {
        self.gpu.ready()?;
        self.gpu.touched();
        // SAFETY: event and stream are alive.
        self.gpu.check("cuEventRecord", unsafe { sys::cuEventRecord(self.raw, self.gpu.inner.stream) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.is_lost() {
            return;
        }
        // SAFETY: created once, destroyed once; one that is still on the stream is destroyed when reached.
        let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}
