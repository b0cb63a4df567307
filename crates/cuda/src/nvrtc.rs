//! NVIDIA's run-time compiler: from the text of kernels to cubins.

use crate::error::GpuError;
use crate::library::{functions, open};
use crate::loader::{Libraries, Wanted};
use libloading::os::unix::Library;
use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};

type Program = usize;

functions!(
    /// libnvrtc.so (nvrtc.h)
    NvrtcApi {
        fn nvrtcVersion(*mut i32, *mut i32) -> i32;
        fn nvrtcGetErrorString(i32) -> *const c_char;
        fn nvrtcCreateProgram(*mut Program, *const c_char, *const c_char, i32, *const *const c_char, *const *const c_char) -> i32;
        fn nvrtcCompileProgram(Program, i32, *const *const c_char) -> i32;
        fn nvrtcGetProgramLogSize(Program, *mut usize) -> i32;
        fn nvrtcGetProgramLog(Program, *mut c_char) -> i32;
        fn nvrtcGetCUBINSize(Program, *mut usize) -> i32;
        fn nvrtcGetCUBIN(Program, *mut c_char) -> i32;
        fn nvrtcDestroyProgram(*mut Program) -> i32;
    }
);

/// What every kernel is compiled with. The last one puts registers and spills into the log.
pub const OPTIONS: [&str; 3] = ["--std=c++17", "--extra-device-vectorization", "--ptxas-options=-v"];

/// NVIDIA's run-time compiler.
pub struct Nvrtc {
    api: NvrtcApi,
    path: PathBuf,
    version: (i32, i32),
    _builtins: Option<Library>,
}

/// Kernels of one text, compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The binary that the driver loads.
    pub cubin: Vec<u8>,
    /// Messages of the compiler, with the resources that each kernel uses.
    pub log: String,
}

impl Nvrtc {
    /// Opens it with the part that it would look for by its bare name.
    ///
    /// # Errors
    /// It was not found or cannot be opened.
    pub fn open(libraries: &Libraries) -> Result<Nvrtc, GpuError> {
        let path = libraries.require(Wanted::Nvrtc)?.path.clone();
        let builtins = libraries.get(Wanted::NvrtcBuiltins).map(|found| open(&found.path)).transpose()?;
        let api = NvrtcApi::load(&path)?;
        let mut nvrtc = Nvrtc { api, path, version: (0, 0), _builtins: builtins };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the pointers are to local numbers.
        nvrtc.check("nvrtcVersion", unsafe { (nvrtc.api.nvrtcVersion)(&mut major, &mut minor) })?;
        nvrtc.version = (major, minor);
        Ok(nvrtc)
    }

    /// The file from which the compiler was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Such as `(13, 0)`.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Compiles a text that includes nothing, for an architecture such as `sm_90a`. `name` is for messages.
    ///
    /// # Errors
    /// The text has errors, which the message lists, or the compiler does not know the architecture.
    pub fn compile(&self, name: &str, text: &str, architecture: &str) -> Result<Compiled, GpuError> {
        let (source, file) = (c_text(text), c_text(&format!("{name}.cu")));
        let mut program = Running { nvrtc: self, handle: 0 };
        let none = std::ptr::null();
        // SAFETY: both texts end with a zero; there are no headers.
        let code = unsafe {
            (self.api.nvrtcCreateProgram)(&mut program.handle, source.as_ptr(), file.as_ptr(), 0, none, none)
        };
        self.check("nvrtcCreateProgram", code)?;
        let architecture_option = format!("--gpu-architecture={architecture}");
        let options: Vec<CString> = OPTIONS.into_iter().chain([architecture_option.as_str()]).map(c_text).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: there are as many pointers as said, each to a text that ends with a zero.
        let code = unsafe { (self.api.nvrtcCompileProgram)(program.handle, pointers.len() as i32, pointers.as_ptr()) };
        let log = program.log()?;
        if let Err(error) = self.check("nvrtcCompileProgram", code) {
            let log = if log.is_empty() { error.to_string() } else { log };
            return Err(GpuError::Compile { kernel: name.to_owned(), arch: architecture.to_owned(), log });
        }
        Ok(Compiled { cubin: program.cubin()?, log })
    }

    fn check(&self, call: &'static str, code: i32) -> Result<(), GpuError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: takes any number, and returns a constant text.
        let text = unsafe { (self.api.nvrtcGetErrorString)(code) };
        let meaning = if text.is_null() {
            "a code that this compiler does not explain".to_owned()
        } else {
            // SAFETY: the text ends with a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(GpuError::Call { call, code, meaning })
    }
}

/// Kernels and options never hold a zero; what stands behind one would be lost.
fn c_text(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).expect("a text without zeros")
}

/// A program of the compiler's, released in the end.
struct Running<'a> {
    nvrtc: &'a Nvrtc,
    handle: Program,
}

impl Running<'_> {
    fn log(&self) -> Result<String, GpuError> {
        let mut size = 0;
        let api = &self.nvrtc.api;
        // SAFETY: the pointer is to a local number.
        self.nvrtc.check("nvrtcGetProgramLogSize", unsafe { (api.nvrtcGetProgramLogSize)(self.handle, &mut size) })?;
        let mut log = vec![0u8; size.max(1)];
        // SAFETY: there is room for as much as the compiler asked for.
        let code = unsafe { (api.nvrtcGetProgramLog)(self.handle, log.as_mut_ptr().cast()) };
        self.nvrtc.check("nvrtcGetProgramLog", code)?;
        let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
        Ok(String::from_utf8_lossy(&log[..end]).trim().to_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>, GpuError> {
        let mut size = 0;
        let api = &self.nvrtc.api;
        // SAFETY: the pointer is to a local number.
        self.nvrtc.check("nvrtcGetCUBINSize", unsafe { (api.nvrtcGetCUBINSize)(self.handle, &mut size) })?;
        let mut cubin = vec![0u8; size];
        // SAFETY: there is room for as much as the compiler asked for.
        self.nvrtc.check("nvrtcGetCUBIN", unsafe { (api.nvrtcGetCUBIN)(self.handle, cubin.as_mut_ptr().cast()) })?;
        Ok(cubin)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.handle != 0 {
            // SAFETY: the program was created and is used no more.
            unsafe { (self.nvrtc.api.nvrtcDestroyProgram)(&mut self.handle) };
        }
    }
}

/// What a compiled kernel takes of a multiprocessor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of local memory that a thread spills registers to.
    pub spill_bytes: u32,
    /// Bytes of static shared memory of a block.
    pub shared_bytes: u32,
}

/// The largest figures in the compiler's log, or `None` where it has none.
pub fn resources(log: &str) -> Option<Resources> {
    let figures = |unit: &str| {
        let of_line = |line: &str| {
            let before = line.split(unit).next().filter(|before| before.len() < line.len())?;
            before.split_whitespace().next_back()?.parse::<u32>().ok()
        };
        log.lines().flat_map(|line| line.split(',')).filter_map(of_line).max()
    };
    Some(Resources {
        registers: figures(" registers")?,
        spill_bytes: figures(" bytes spill stores").unwrap_or(0) + figures(" bytes spill loads").unwrap_or(0),
        shared_bytes: figures(" bytes smem").unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_read_off_the_log() {
        let log = "ptxas info    : 0 bytes gmem\n\
                   ptxas info    : Function properties for layer_norm\n    8 bytes stack frame, 4 bytes spill stores, \
                   12 bytes spill loads\n\
                   ptxas info    : Used 34 registers, used 1 barriers, 8 bytes cumulative stack size, 128 bytes smem";
        assert_eq!(resources(log), Some(Resources { registers: 34, spill_bytes: 16, shared_bytes: 128 }));
        assert_eq!(resources(""), None);
    }
}
