//! cuBLAS, where it is installed: what users have today for matrix products, and the fastest trusted product.

use std::ffi::{c_int, c_longlong, c_void};
use std::path::{Path, PathBuf};

use libloading::{Library, Symbol};

use super::super::driver::{CudaError, Gpu, Vault};
use crate::op::Dtype;

/// Memory that its kernels may use, bytes: what cuBLAS itself takes on the largest devices.
const WORKSPACE: usize = 32 << 20;

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
type Destroy = unsafe extern "C" fn(Handle) -> c_int;
type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> c_int;
type SetWorkspace = unsafe extern "C" fn(Handle, u64, usize) -> c_int;
/// One product. Batches of one go here: of a batch cuBLAS does not share the terms of a product among blocks.
type Gemm = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    u64,
    c_int,
    c_int,
    u64,
    c_int,
    c_int,
    *const c_void,
    u64,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;
type GemmBatch = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    u64,
    c_int,
    c_int,
    c_longlong,
    u64,
    c_int,
    c_int,
    c_longlong,
    *const c_void,
    u64,
    c_int,
    c_int,
    c_longlong,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// What the elements of a product are and how they are added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Doubles.
    Double,
    /// A kernel's dtype; sums in single precision, and single-precision factors are not rounded.
    Of(Dtype),
    /// Single precision with factors rounded to tf32.
    Tf32,
}

impl Precision {
    /// cuBLAS's numbers: data type, compute type.
    const fn numbers(self) -> (c_int, c_int) {
        match self {
            Self::Double => (1, 70),
            Self::Of(Dtype::F32) => (0, 68),
            Self::Of(Dtype::F16) => (2, 68),
            Self::Of(Dtype::Bf16) => (14, 68),
            Self::Tf32 => (0, 77),
        }
    }
}

/// One side of a batch of products, row-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    /// Address of the first matrix.
    pub at: u64,
    /// Elements from one row to the next, as they are stored.
    pub step: i64,
    /// Elements from one matrix to the next.
    pub next: i64,
}

/// `out[z] = a[z] b[z]` for `batch` matrices; `b` is stored as `[n,k]` where `trans_b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gemms {
    /// How many.
    pub batch: usize,
    /// Rows of `a` and of the product.
    pub m: usize,
    /// Columns of the product.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Whether `b` is stored as `[n,k]`.
    pub trans_b: bool,
    /// Left factors.
    pub a: Side,
    /// Right factors.
    pub b: Side,
    /// Products.
    pub out: Side,
}

/// A loaded cuBLAS with a handle on a device's stream.
pub struct Cublas {
    gpu: Gpu,
    handle: Handle,
    gemm: Gemm,
    batch: GemmBatch,
    destroy: Destroy,
    workspace: Vault,
    _library: Library,
    _parts: Vec<Library>,
}

impl std::fmt::Debug for Cublas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cublas").finish_non_exhaustive()
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // A lost device would make it wait for ever.
        if self.gpu.settle().is_ok() {
            // SAFETY: created once, destroyed once, and nothing of it runs.
            let _ = unsafe { (self.destroy)(self.handle) };
        }
    }
}

impl Cublas {
    /// Loads the newest cuBLAS of `folders` that the driver serves and opens it on the device.
    ///
    /// # Errors
    /// A sentence: none is found, or it does not start.
    pub fn load(gpu: &Gpu, folders: &[PathBuf]) -> Result<Self, String> {
        let newest = gpu.facts().driver / 1000;
        let names =
            (11..=newest).rev().map(|major| (format!("libcublas.so.{major}"), format!("libcublasLt.so.{major}")));
        let mut tried = String::from("no libcublas.so is in the library folders");
        for (name, part) in names {
            for folder in folders.iter().filter(|folder| folder.join(&name).is_file()) {
                match Self::open(gpu, folder, &name, &part) {
                    Ok(loaded) => return Ok(loaded),
                    Err(error) => tried = format!("{}: {error}", folder.join(&name).display()),
                }
            }
        }
        Err(tried)
    }

    fn open(gpu: &Gpu, folder: &Path, name: &str, part: &str) -> Result<Self, String> {
        let load = |file: &str| {
            // SAFETY: NVIDIA's library of that name, from a folder where the user has such libraries; its start-up code runs.
            unsafe { Library::new(folder.join(file)) }.map_err(|error| error.to_string())
        };
        // Loaded first, because PyPI's packages do not say where it is. Older ones have it in one file.
        let parts: Vec<Library> = load(part).into_iter().collect();
        let library = load(name)?;
        // SAFETY: the types are those of cublas_api.h, unchanged since cuBLAS 11 (device pointers are words).
        let (create, destroy, set_stream, set_workspace, gemm, batch) = unsafe {
            (
                *get::<Create>(&library, "cublasCreate_v2")?,
                *get::<Destroy>(&library, "cublasDestroy_v2")?,
                *get::<SetStream>(&library, "cublasSetStream_v2")?,
                *get::<SetWorkspace>(&library, "cublasSetWorkspace_v2")?,
                *get::<Gemm>(&library, "cublasGemmEx")?,
                *get::<GemmBatch>(&library, "cublasGemmStridedBatchedEx")?,
            )
        };
        let workspace = gpu.vault(WORKSPACE).map_err(|error| error.to_string())?;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: the device's primary context is current; it writes one pointer.
        status("cublasCreate", unsafe { create(&raw mut handle) })?;
        let loaded =
            Self { gpu: gpu.clone(), handle, gemm, batch, destroy, workspace, _library: library, _parts: parts };
        loaded.gpu.make_current().map_err(|error| error.to_string())?;
        // SAFETY: handle and stream are alive.
        status("cublasSetStream", unsafe { set_stream(handle, gpu.stream()) })?;
        // Of its own, so that calls can be captured in graphs. The stream comes first: setting it resets the workspace.
        // SAFETY: the memory is the device's and lives as long as the handle.
        status("cublasSetWorkspace", unsafe { set_workspace(handle, loaded.workspace.ptr(), WORKSPACE) })?;
        Ok(loaded)
    }

    /// What it works with; sealed while candidates run.
    #[must_use]
    pub const fn workspace(&self) -> &Vault {
        &self.workspace
    }

    /// Puts the products on the stream; where `add`, they are added to what `out` holds.
    ///
    /// # Errors
    /// Sizes beyond what cuBLAS takes, or what it refused.
    pub fn multiply(&self, gemms: &Gemms, precision: Precision, add: bool) -> Result<(), CudaError> {
        let too_large = || CudaError::Launch("a product is too large for cuBLAS".into());
        let int = |value: usize| c_int::try_from(value).map_err(|_| too_large());
        let step = |value: i64| c_int::try_from(value.max(1)).map_err(|_| too_large());
        let (kind, compute) = precision.numbers();
        let beta = u8::from(add);
        let (singles, doubles) = ([1.0, f32::from(beta)], [1.0, f64::from(beta)]);
        let scalars: [*const c_void; 2] = if precision == Precision::Double {
            [(&raw const doubles[0]).cast(), (&raw const doubles[1]).cast()]
        } else {
            [(&raw const singles[0]).cast(), (&raw const singles[1]).cast()]
        };
        let Gemms { a, b, out, .. } = gemms;
        self.gpu.make_current()?;
        self.workspace.open()?;
        // cuBLAS counts by columns: to it a row-major matrix is its transpose, so it computes out^T = b^T a^T.
        let (trans, plain) = (1, 0);
        let first = if gemms.trans_b { trans } else { plain };
        let (rows, cols, terms, count) = (int(gemms.m)?, int(gemms.n)?, int(gemms.k)?, int(gemms.batch)?);
        let (b_step, a_step, out_step) = (step(b.step)?, step(a.step)?, step(out.step)?);
        let handle = self.handle;
        // SAFETY: the handle is open; addresses, steps and sizes describe matrices inside the device's memory (the callers'
        // promise, as for every launch: a wrong one faults there, not here); the scalars are read before the call returns.
        let (call, result) = unsafe {
            if count == 1 {
                let result = (self.gemm)(
                    handle, first, plain, cols, rows, terms, scalars[0], b.at, kind, b_step, a.at, kind, a_step,
                    scalars[1], out.at, kind, out_step, compute, -1,
                );
                ("cublasGemmEx", result)
            } else {
                let result = (self.batch)(
                    handle, first, plain, cols, rows, terms, scalars[0], b.at, kind, b_step, b.next, a.at, kind,
                    a_step, a.next, scalars[1], out.at, kind, out_step, out.next, count, compute, -1,
                );
                ("cublasGemmStridedBatchedEx", result)
            }
        };
        self.gpu.touched();
        status(call, result).map_err(CudaError::Launch)
    }
}

unsafe fn get<'a, F>(library: &'a Library, name: &str) -> Result<Symbol<'a, F>, String> {
    // SAFETY: the caller says that the symbol has this type.
    unsafe { library.get(format!("{name}\0")) }.map_err(|error| error.to_string())
}

fn status(place: &str, status: c_int) -> Result<(), String> {
    let meaning = match status {
        0 => return Ok(()),
        1 => "it is not initialised",
        3 => "there is no memory for it",
        7 => "a value it does not take",
        8 => "not on this architecture",
        13 => "a kernel of it failed",
        14 => "an error of its own",
        15 => "not supported",
        _ => "an error",
    };
    Err(format!("{place}: {meaning} (status {status})"))
}
