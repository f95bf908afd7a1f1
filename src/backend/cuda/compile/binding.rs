//! NVRTC's functions, as much of them as is used.
//!
//! A binding of our own, because the one at hand never looks for `libnvrtc.so.13`, and panics where it finds nothing.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

type Program = *mut c_void;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// The compiler refused the source.
const COMPILATION: c_int = 6;
/// A name expression names nothing that could be launched.
const NAME_NOT_VALID: c_int = 10;

/// NVRTC, loaded into this process.
pub(super) struct Nvrtc {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    add_name: unsafe extern "C" fn(Program, *const c_char) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    lowered: unsafe extern "C" fn(Program, *const c_char, *mut *const c_char) -> c_int,
    cubin: (Size, Get),
    ptx: (Size, Get),
    log: (Size, Get),
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    archs: (unsafe extern "C" fn(*mut c_int) -> c_int, unsafe extern "C" fn(*mut c_int) -> c_int),
    words: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Keeps the functions loaded.
    _library: Library,
    _builtins: Option<Library>,
}

/// What one compilation gave.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// Whether the source was accepted.
    pub(super) accepted: bool,
    /// The compiler's words.
    pub(super) log: String,
    /// Code for the device.
    pub(super) cubin: Vec<u8>,
    /// The same as text of the virtual machine.
    pub(super) ptx: Vec<u8>,
    /// The lowered name of each name expression.
    pub(super) names: Vec<String>,
}

impl Nvrtc {
    /// Loads the library, the built-ins first.
    pub(super) fn load(library: &Path, builtins: Option<&Path>) -> Result<Self, String> {
        let open = |path: &Path| {
            // SAFETY: NVIDIA's libraries; their start-up code does nothing but set themselves up.
            unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| error.to_string())
        };
        let builtins = builtins.map(open).transpose()?;
        let library = open(library)?;
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the field it is stored in has this function's type in nvrtc.h.
                unsafe { library.get(concat!($name, "\0").as_bytes()) }
                    .map(|symbol| *symbol)
                    .map_err(|e| e.to_string())?
            }};
        }
        Ok(Self {
            create: function!("nvrtcCreateProgram"),
            destroy: function!("nvrtcDestroyProgram"),
            add_name: function!("nvrtcAddNameExpression"),
            compile: function!("nvrtcCompileProgram"),
            lowered: function!("nvrtcGetLoweredName"),
            cubin: (function!("nvrtcGetCUBINSize"), function!("nvrtcGetCUBIN")),
            ptx: (function!("nvrtcGetPTXSize"), function!("nvrtcGetPTX")),
            log: (function!("nvrtcGetProgramLogSize"), function!("nvrtcGetProgramLog")),
            version: function!("nvrtcVersion"),
            archs: (function!("nvrtcGetNumSupportedArchs"), function!("nvrtcGetSupportedArchs")),
            words: function!("nvrtcGetErrorString"),
            _library: library,
            _builtins: builtins,
        })
    }

    /// Major and minor version.
    pub(super) fn version(&self) -> (u32, u32) {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two ints.
        unsafe { (self.version)(&raw mut major, &raw mut minor) };
        (major.unsigned_abs(), minor.unsigned_abs())
    }

    /// The architectures it compiles for, as 80, 90.
    pub(super) fn archs(&self) -> Vec<u32> {
        let mut count = 0;
        // SAFETY: writes one int.
        unsafe { (self.archs.0)(&raw mut count) };
        let mut archs = vec![0; usize::try_from(count).unwrap_or_default()];
        if !archs.is_empty() {
            // SAFETY: writes as many ints as it said there are.
            unsafe { (self.archs.1)(archs.as_mut_ptr()) };
        }
        archs.into_iter().map(c_int::unsigned_abs).collect()
    }

    /// Compiles `source` with `options`; `headers` are names and contents.
    pub(super) fn compile(
        &self,
        name: &str,
        source: &str,
        options: &[String],
        names: &[String],
        headers: &[(&str, &str)],
    ) -> Result<Output, String> {
        let text = |text: &str| CString::new(text).map_err(|_| "a text with a NUL byte".to_owned());
        let source = text(source)?;
        let name = text(name)?;
        let options: Vec<CString> = options.iter().map(|option| text(option)).collect::<Result<_, _>>()?;
        let names: Vec<CString> = names.iter().map(|name| text(name)).collect::<Result<_, _>>()?;
        let headers: Vec<(CString, CString)> =
            headers.iter().map(|(name, contents)| Ok((text(name)?, text(contents)?))).collect::<Result<_, String>>()?;
        let contents: Vec<*const c_char> = headers.iter().map(|(_, contents)| contents.as_ptr()).collect();
        let header_names: Vec<*const c_char> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
        let mut program = Made { nvrtc: self, raw: null_mut() };
        // SAFETY: strings that end with zeros and outlive the program; as many headers as is said.
        self.check("nvrtcCreateProgram", unsafe {
            (self.create)(
                &raw mut program.raw,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                contents.as_ptr(),
                header_names.as_ptr(),
            )
        })?;
        for name in &names {
            // SAFETY: the program exists and is not compiled yet.
            self.check("nvrtcAddNameExpression", unsafe { (self.add_name)(program.raw, name.as_ptr()) })?;
        }
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: as many options as is said, each a string.
        let result = unsafe { (self.compile)(program.raw, pointers.len() as c_int, pointers.as_ptr()) };
        let log = String::from_utf8_lossy(&program.get(self.log)).trim_end_matches('\0').to_owned();
        match result {
            0 => {}
            COMPILATION | NAME_NOT_VALID => return Ok(Output { log, ..Output::default() }),
            other => {
                self.check("nvrtcCompileProgram", other)
                    .map_err(|error| format!("{error}\n{log}").trim().to_owned())?;
            }
        }
        let mut output =
            Output { accepted: true, log, cubin: program.get(self.cubin), ptx: program.get(self.ptx), names: vec![] };
        for name in &names {
            let mut lowered: *const c_char = std::ptr::null();
            // SAFETY: the program is compiled and the expression is one of those added; it writes one pointer.
            let result = unsafe { (self.lowered)(program.raw, name.as_ptr(), &raw mut lowered) };
            if result != 0 || lowered.is_null() {
                let log = format!("there is no kernel `{}` in the text\n{}", name.to_string_lossy(), output.log);
                return Ok(Output { log, ..Output::default() });
            }
            // SAFETY: a string that lives as long as the program.
            output.names.push(unsafe { CStr::from_ptr(lowered) }.to_string_lossy().into_owned());
        }
        Ok(output)
    }

    fn check(&self, place: &str, result: c_int) -> Result<(), String> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: returns a constant string for every number.
        let words = unsafe { CStr::from_ptr((self.words)(result)) };
        Err(format!("{place}: {}", words.to_string_lossy()))
    }
}

/// A program, destroyed at the end.
struct Made<'a> {
    nvrtc: &'a Nvrtc,
    raw: Program,
}

impl Made<'_> {
    /// What a pair of functions (size, contents) has.
    fn get(&self, (size, get): (Size, Get)) -> Vec<u8> {
        let mut bytes = 0usize;
        // SAFETY: the program exists; it writes one word.
        if unsafe { size(self.raw, &raw mut bytes) } != 0 || bytes == 0 {
            return Vec::new();
        }
        let mut contents = vec![0u8; bytes];
        // SAFETY: there is room for as much as it said.
        if unsafe { get(self.raw, contents.as_mut_ptr().cast()) } != 0 {
            return Vec::new();
        }
        contents
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: created once, destroyed once.
            unsafe { (self.nvrtc.destroy)(&raw mut self.raw) };
        }
    }
}
