//! An open device: its context, its one stream, and whether it is still ours.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::io;
use std::panic;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUlimit, CUresult, CUstream, CUstream_flags};

use super::super::Fault;
use super::error::{CudaError, Sticky, kernel_fault, sticky};
use super::facts::{GpuFacts, facts, ok};
use super::module::Loaded;

/// The oldest driver that has all that is used here (parameters of a kernel can be asked for since 12.4).
const OLDEST_DRIVER: u32 = 12_040;
/// How long trusted work may take.
const TRUSTED: Duration = Duration::from_secs(60);
/// How long a wait watches without pause: launches are microseconds, and sleeping adds tens of them.
const WATCHED: Duration = Duration::from_millis(2);
/// The pause after that.
const PAUSE: Duration = Duration::from_micros(20);

/// A device with a context and a stream. Clones are the same device. It stays on the thread that opened it.
#[derive(Debug, Clone)]
pub struct Gpu {
    pub(super) inner: Rc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    device: CUdevice,
    context: CUcontext,
    pub(super) stream: CUstream,
    facts: GpuFacts,
    /// Why the device is lost, once it is.
    lost: RefCell<Option<String>>,
    /// Whether something may still run on the stream.
    pending: Cell<bool>,
    /// The modules that a graph under capture launches from; `None` where none is being captured.
    pub(super) captured: RefCell<Option<Vec<Rc<Loaded>>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A context with a kernel that hangs cannot be torn down, only left to the end of the process.
        if self.lost.get_mut().is_some() {
            return;
        }
        // SAFETY: made by `open`, given back once; nothing outlives `Inner` that uses the stream.
        unsafe {
            let _ = sys::cuStreamDestroy_v2(self.stream);
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

impl Gpu {
    /// Opens device `ordinal` and makes its context the current one of this thread.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::NoDevice`], or what the driver refused.
    pub fn open(ordinal: u32) -> Result<Self, CudaError> {
        let (device, context) = retain_primary(ordinal)?;
        let facts = facts(ordinal, device, installed_driver()?)?;
        // SAFETY: the context was just retained.
        ok("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context) })?;
        // What kernels print goes to the process's standard output, from which the worker moved its protocol away before
        // anything else; so it cannot forge a message. The buffer is as small as the driver lets it be, so that it cannot
        // cost time either. The same for the heap of `malloc` in kernels, where something could be kept between launches.
        // A driver that refuses keeps its defaults.
        for limit in [CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE, CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE] {
            // SAFETY: a context is current.
            let _ = unsafe { sys::cuCtxSetLimit(limit, 4096) };
        }
        let mut stream: CUstream = std::ptr::null_mut();
        // SAFETY: a context is current; it writes one pointer.
        ok("cuStreamCreate", unsafe {
            sys::cuStreamCreate(&raw mut stream, CUstream_flags::CU_STREAM_NON_BLOCKING as u32)
        })?;
        let inner = Inner {
            device,
            context,
            stream,
            facts,
            lost: RefCell::new(None),
            pending: Cell::new(false),
            captured: RefCell::new(None),
        };
        Ok(Self { inner: Rc::new(inner) })
    }

    /// What the device is.
    #[must_use]
    pub fn facts(&self) -> &GpuFacts {
        &self.inner.facts
    }

    /// Its one stream, for libraries that launch by themselves; call [`Gpu::touched`] after they did.
    #[must_use]
    pub fn stream(&self) -> *mut std::ffi::c_void {
        self.inner.stream.cast()
    }

    /// Says that something was put on the stream.
    pub fn touched(&self) {
        self.inner.pending.set(true);
    }

    /// Free and total bytes of memory.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        let (mut free, mut total) = (0usize, 0usize);
        self.ready()?;
        // SAFETY: a context is current; it writes two words.
        self.check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Whether a kernel faulted or hangs. Nothing works any more then; a new process gets the device back.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.inner.lost.borrow().is_some()
    }

    /// Waits until nothing runs any more, for at most `limit`.
    ///
    /// # Errors
    /// [`Fault::Timeout`] and [`Fault::Crash`], after which the device is lost.
    pub fn synchronize(&self, limit: Duration) -> Result<(), Fault> {
        self.ready().map_err(CudaError::fault)?;
        if self.inner.captured.borrow().is_some() {
            return Err(Fault::Host(io::Error::other("a wait within the recording of a graph")));
        }
        let begin = Instant::now();
        loop {
            // Asked for rather than waited for: a wait inside the driver cannot be ended.
            // SAFETY: the stream is alive.
            match unsafe { sys::cuStreamQuery(self.inner.stream) } {
                CUresult::CUDA_SUCCESS => {
                    self.inner.pending.set(false);
                    return Ok(());
                }
                CUresult::CUDA_ERROR_NOT_READY => {}
                other => return Err(self.failed(other)),
            }
            let waited = begin.elapsed();
            if waited > limit {
                self.lose(format!("a kernel did not return within {:.3} s", limit.as_secs_f64()));
                return Err(Fault::Timeout { limit });
            }
            if waited < WATCHED {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Waits for trusted work that may still run.
    ///
    /// # Errors
    /// [`CudaError::Lost`]; [`CudaError::Launch`] within [`Gpu::capture`], where nothing can be waited for.
    pub fn settle(&self) -> Result<(), CudaError> {
        self.ready()?;
        if self.inner.captured.borrow().is_some() {
            return Err(CudaError::Launch("a wait within the recording of a graph".into()));
        }
        if !self.inner.pending.get() {
            return Ok(());
        }
        self.synchronize(TRUSTED).map_err(|fault| CudaError::Lost(fault.to_string()))
    }

    /// Whether memory or code may be given back to the driver now. It would wait for ever for a kernel that hangs.
    pub(super) fn may_release(&self) -> bool {
        self.inner.captured.borrow().is_none() && self.settle().is_ok()
    }

    /// Evicts what kernels marked as persisting in L2.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn reset_persisting_l2(&self) -> Result<(), CudaError> {
        self.ready()?;
        // SAFETY: a context is current.
        match unsafe { sys::cuCtxResetPersistingL2Cache() } {
            CUresult::CUDA_ERROR_NOT_SUPPORTED => Ok(()),
            result => self.check("cuCtxResetPersistingL2Cache", result),
        }
    }

    /// Errs where the device is lost; makes its context current where a library changed that.
    pub(super) fn ready(&self) -> Result<(), CudaError> {
        if let Some(why) = &*self.inner.lost.borrow() {
            return Err(CudaError::Lost(why.clone()));
        }
        Ok(())
    }

    /// Makes the context current again, after a library that may have changed that.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn make_current(&self) -> Result<(), CudaError> {
        self.ready()?;
        // SAFETY: the context is retained as long as `Inner` lives.
        self.check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.inner.context) })
    }

    /// A result as an error; sticky ones lose the device.
    pub(super) fn check(&self, place: &'static str, result: CUresult) -> Result<(), CudaError> {
        if result == CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        match sticky(result) {
            Sticky::No => Err(CudaError::of(place, result)),
            Sticky::Kernel | Sticky::Machine => {
                let why = kernel_fault(result);
                self.lose(why.clone());
                Err(CudaError::Lost(why))
            }
        }
    }

    /// What a wait found, as a fault. The device is lost after it: whatever it is, the stream does not work.
    fn failed(&self, result: CUresult) -> Fault {
        let why = kernel_fault(result);
        self.lose(why.clone());
        match sticky(result) {
            Sticky::Kernel => Fault::Crash { what: why, signal: None, input_offset: None },
            Sticky::No | Sticky::Machine => Fault::Host(io::Error::other(why)),
        }
    }

    fn lose(&self, why: String) {
        self.inner.lost.borrow_mut().get_or_insert(why);
    }
}

/// Makes the context of device `ordinal`, which takes a third of a second and may be done by any thread: whoever opens the
/// device later finds it there. It lasts as long as the process.
///
/// # Errors
/// As [`Gpu::open`].
pub fn retain_context(ordinal: u32) -> Result<(), CudaError> {
    retain_primary(ordinal).map(drop)
}

/// The primary context, because cuBLAS finds its way to that one.
fn retain_primary(ordinal: u32) -> Result<(CUdevice, CUcontext), CudaError> {
    driver_version()?;
    let device = device(ordinal)?;
    let mut context: CUcontext = std::ptr::null_mut();
    // SAFETY: `device` came from the driver; it writes one pointer.
    ok("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, device) })?;
    Ok((device, context))
}

/// The newest CUDA that the driver serves, as 12080 for 12.8, without a look at any device.
///
/// # Errors
/// [`CudaError::NoDriver`].
pub fn installed_driver() -> Result<u32, CudaError> {
    // SAFETY: looks for the library and loads it, which runs NVIDIA's start-up code only.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver("libcuda.so.1 is not on this machine".into()));
    }
    let mut version: c_int = 0;
    // SAFETY: writes one int; may be called before `cuInit`.
    let result = looked_up(|| unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
    ok("cuDriverGetVersion", result).map_err(|error| CudaError::NoDriver(error.to_string()))?;
    let version = u32::try_from(version).unwrap_or_default();
    if version < OLDEST_DRIVER {
        let [have, need] = [version, OLDEST_DRIVER].map(|v| format!("{}.{}", v / 1000, v % 1000 / 10));
        return Err(CudaError::NoDriver(format!("it serves CUDA {have}, and {need} is needed: update it")));
    }
    Ok(version)
}

/// The same, and the driver works.
///
/// # Errors
/// [`CudaError::NoDriver`], or [`CudaError::NoDevice`] where it has nothing to drive.
pub fn driver_version() -> Result<u32, CudaError> {
    let version = installed_driver()?;
    // SAFETY: the flags must be 0.
    match looked_up(|| unsafe { sys::cuInit(0) })? {
        CUresult::CUDA_SUCCESS => Ok(version),
        CUresult::CUDA_ERROR_NO_DEVICE => {
            Err(CudaError::NoDevice { ordinal: 0, reason: "the driver finds no GPU".into() })
        }
        other => Err(CudaError::NoDriver(CudaError::of("cuInit", other).to_string())),
    }
}

/// A driver too old for a function panics when that is looked up; that is the same as no driver.
fn looked_up(call: impl FnOnce() -> CUresult) -> Result<CUresult, CudaError> {
    let lacks = |_| CudaError::NoDriver("libcuda.so.1 lacks functions that every driver has".into());
    panic::catch_unwind(panic::AssertUnwindSafe(call)).map_err(lacks)
}

/// How many devices there are.
///
/// # Errors
/// [`CudaError::NoDriver`].
pub fn device_count() -> Result<u32, CudaError> {
    match driver_version() {
        Ok(_) => {}
        Err(CudaError::NoDevice { .. }) => return Ok(0),
        Err(error) => return Err(error),
    }
    let mut count: c_int = 0;
    // SAFETY: writes one int.
    ok("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    Ok(u32::try_from(count).unwrap_or_default())
}

/// What device `ordinal` is, without a context on it.
///
/// # Errors
/// As [`Gpu::open`].
pub fn device_facts(ordinal: u32) -> Result<GpuFacts, CudaError> {
    let driver = driver_version()?;
    facts(ordinal, device(ordinal)?, driver)
}

fn device(ordinal: u32) -> Result<CUdevice, CudaError> {
    let mut count: c_int = 0;
    // SAFETY: writes one int.
    ok("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    let mut device: CUdevice = 0;
    match c_int::try_from(ordinal) {
        Ok(number) if number < count => {
            // SAFETY: writes one int.
            ok("cuDeviceGet", unsafe { sys::cuDeviceGet(&raw mut device, number) })?;
            Ok(device)
        }
        _ => {
            let reason = match count {
                0 => "the driver finds no GPU".into(),
                1 => "there is one, device 0".into(),
                more => format!("there are {more}, devices 0 to {}", more - 1),
            };
            Err(CudaError::NoDevice { ordinal, reason })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_is_no_driver_opening_says_so_and_does_not_panic() {
        match Gpu::open(0) {
            Ok(gpu) => assert!(!gpu.facts().name.is_empty()),
            Err(error) => {
                assert!(matches!(error, CudaError::NoDriver(_) | CudaError::NoDevice { .. } | CudaError::Call { .. }));
            }
        }
    }
}
