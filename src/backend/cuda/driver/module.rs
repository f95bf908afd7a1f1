//! Loaded code.

use std::cell::Cell;
use std::ffi::{CString, c_int};
use std::rc::Rc;

use cudarc::driver::sys::{self, CUdeviceptr, CUfunction, CUfunction_attribute as Attribute, CUmodule, CUresult};

use super::error::CudaError;
use super::gpu::Gpu;

/// A cubin on the device, unloaded when the last of its functions and graphs is gone.
#[derive(Debug, Clone)]
pub struct Module {
    loaded: Rc<Loaded>,
}

#[derive(Debug)]
pub(super) struct Loaded {
    gpu: Gpu,
    raw: CUmodule,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if self.gpu.may_release() {
            // SAFETY: loaded once, unloaded once, and nothing runs that could be of it.
            let _ = unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// A kernel of a module.
#[derive(Debug, Clone)]
pub struct Function {
    pub(super) module: Rc<Loaded>,
    pub(super) raw: CUfunction,
    pub(super) name: Rc<str>,
    /// Bytes of each parameter.
    pub(super) parameters: Rc<[usize]>,
    /// What the kernel needs.
    facts: FunctionFacts,
    /// Bytes of dynamic shared memory it may be launched with so far.
    pub(super) dynamic: Rc<Cell<u32>>,
    /// Whether clusters of more than eight blocks were allowed.
    pub(super) large_clusters: Rc<Cell<bool>>,
}

/// What a kernel needs of a multiprocessor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionFacts {
    /// Registers a thread.
    pub registers: u32,
    /// Bytes of local memory a thread: spills and arrays on the stack.
    pub local_bytes: u32,
    /// Bytes of shared memory a block has by declaration.
    pub shared_bytes: u32,
    /// Most threads a block may have.
    pub max_threads: u32,
}

impl Gpu {
    /// Loads a cubin.
    ///
    /// # Errors
    /// What the driver refused: no cubin, for another architecture, with names it does not know.
    pub fn module(&self, cubin: &[u8]) -> Result<Module, CudaError> {
        // Any cubin is an ELF file of more than its header; the driver reads as far as that says, so not less than it.
        if cubin.len() < 64 || !cubin.starts_with(b"\x7fELF") {
            return Err(CudaError::Launch("the image is not a cubin".into()));
        }
        self.settle()?;
        let mut raw: CUmodule = std::ptr::null_mut();
        // SAFETY: a whole ELF file, read before the call returns; the caller got it from the compiler, checked.
        self.check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&raw mut raw, cubin.as_ptr().cast()) })?;
        Ok(Module { loaded: Rc::new(Loaded { gpu: self.clone(), raw }) })
    }
}

impl Module {
    /// The kernel of this (lowered) name.
    ///
    /// # Errors
    /// There is none.
    pub fn function(&self, name: &str) -> Result<Function, CudaError> {
        let gpu = &self.loaded.gpu;
        gpu.ready()?;
        let text = c_name(name)?;
        let mut raw: CUfunction = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a zero.
        let result = unsafe { sys::cuModuleGetFunction(&raw mut raw, self.loaded.raw, text.as_ptr()) };
        if result == CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(CudaError::Launch(format!("there is no kernel `{name}` in the compiled code")));
        }
        gpu.check("cuModuleGetFunction", result)?;
        let ask = |attribute: Attribute| -> Result<u32, CudaError> {
            let mut value: c_int = 0;
            // SAFETY: the function belongs to a loaded module; it writes one int.
            gpu.check("cuFuncGetAttribute", unsafe { sys::cuFuncGetAttribute(&raw mut value, attribute, raw) })?;
            Ok(u32::try_from(value).unwrap_or_default())
        };
        let facts = FunctionFacts {
            registers: ask(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: ask(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            shared_bytes: ask(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            max_threads: ask(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        };
        Ok(Function {
            module: Rc::clone(&self.loaded),
            raw,
            name: name.into(),
            parameters: parameters(gpu, raw)?.into(),
            facts,
            dynamic: Rc::new(Cell::new(0)),
            large_clusters: Rc::new(Cell::new(false)),
        })
    }

    /// Address and bytes of a variable.
    ///
    /// # Errors
    /// There is none.
    pub fn global(&self, name: &str) -> Result<(u64, usize), CudaError> {
        let gpu = &self.loaded.gpu;
        gpu.ready()?;
        let text = c_name(name)?;
        let (mut ptr, mut bytes): (CUdeviceptr, usize) = (0, 0);
        // SAFETY: the module is loaded, the name ends with a zero; it writes two words.
        let result = unsafe { sys::cuModuleGetGlobal_v2(&raw mut ptr, &raw mut bytes, self.loaded.raw, text.as_ptr()) };
        gpu.check("cuModuleGetGlobal", result)?;
        Ok((ptr, bytes))
    }
}

impl Function {
    /// Its lowered name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it needs.
    #[must_use]
    pub fn facts(&self) -> FunctionFacts {
        self.facts
    }
}

fn c_name(name: &str) -> Result<CString, CudaError> {
    CString::new(name).map_err(|_| CudaError::Launch("a name with a zero in it".into()))
}

/// Bytes of each parameter of a kernel, in order.
fn parameters(gpu: &Gpu, raw: CUfunction) -> Result<Vec<usize>, CudaError> {
    let mut sizes = Vec::new();
    loop {
        let (mut offset, mut size) = (0usize, 0usize);
        // SAFETY: the function belongs to a loaded module; past the last parameter the call errs. It writes two words.
        match unsafe { sys::cuFuncGetParamInfo(raw, sizes.len(), &raw mut offset, &raw mut size) } {
            CUresult::CUDA_SUCCESS => sizes.push(size),
            CUresult::CUDA_ERROR_INVALID_VALUE => return Ok(sizes),
            other => gpu.check("cuFuncGetParamInfo", other)?,
        }
    }
}
