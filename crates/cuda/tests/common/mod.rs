//! A machine with a GPU that is none: mocks of the driver, of NVRTC, cuBLASLt, cuDNN and NCCL, compiled when a test asks for them.

#![allow(dead_code, reason = "each file of tests uses a part")]

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::ffi::{CStr, CString, c_char, c_long};
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

const SHIM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cuda/tests/mock/shim.h");
const LIBRARIES: [(&str, &str); 5] = [
    ("libcuda", "libcuda.so.1"),
    ("libnvrtc", "libnvrtc.so.13"),
    ("libcublasLt", "libcublasLt.so.13"),
    ("libcudnn", "libcudnn.so.9"),
    ("libnccl", "libnccl.so.2"),
];

/// Reasons why tests of this program checked nothing.
static SKIPPED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Says on the terminal that a test checks nothing here, and, when the program ends, how many did so, and why. These
/// lines are not captured.
pub(crate) fn skip(test: &str, reason: &str) {
    unsafe extern "C" {
        fn atexit(at_the_end: extern "C" fn()) -> i32;
    }
    notify(format!("skipped: {test}: {reason}\n"));
    let mut skipped = SKIPPED.lock().unwrap();
    if skipped.is_empty() {
        // SAFETY: the function is there as long as the program runs.
        unsafe { atexit(tell_skipped) };
    }
    skipped.push(reason.to_owned());
}

extern "C" fn tell_skipped() {
    let Ok(skipped) = SKIPPED.lock() else { return };
    let reasons: BTreeSet<&String> = skipped.iter().collect();
    let count = |reason: &String| skipped.iter().filter(|other| *other == reason).count();
    let counts: Vec<String> = reasons.into_iter().map(|reason| format!("{} because {reason}", count(reason))).collect();
    notify(format!("skipped: {} in all: {}\n", skipped.len(), counts.join(", ")));
}

/// Writes a line as a whole, past what captures the output of tests.
fn notify(line: String) {
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The host's C++ compiler, or `None`.
fn compiler() -> Option<&'static str> {
    ["c++", "g++", "clang++"].into_iter().find(|name| Command::new(name).arg("--version").output().is_ok())
}

/// Folder with the mocks, or `None` on machines without a C++ compiler.
pub(crate) fn mock_folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(|| compiler().map(build)).as_deref()
}

/// The folder, and a line on the terminal where there is none.
pub(crate) fn mock_or_skip(test: &str) -> Option<&'static Path> {
    let folder = mock_folder();
    if folder.is_none() {
        skip(test, "there is no C++ compiler to build the mock of a GPU with");
    }
    folder
}

/// Builds what has changed. Processes that do so at the same time do not disturb each other.
fn build(compiler: &str) -> PathBuf {
    let mocks = Path::new(SHIM).parent().unwrap();
    let sources = LIBRARIES.map(|(source, _)| std::fs::read_to_string(mocks.join(format!("{source}.cpp"))).unwrap());
    let mut hash = DefaultHasher::new();
    let headers = [SHIM, "calls.h", "floats.h", "streams.h"]
        .map(|name| mocks.join(name))
        .map(|path| std::fs::read_to_string(path).unwrap());
    (&sources, headers, compiler).hash(&mut hash);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mock-{:016x}", hash.finish()));
    std::fs::create_dir_all(&folder).unwrap();
    for (source, library) in LIBRARIES {
        let (path, beside) = (folder.join(library), folder.join(format!("{library}.{}", std::process::id())));
        if path.exists() {
            continue;
        }
        let ran = Command::new(compiler)
            .args(["-std=c++17", "-O3", "-w", "-pthread", "-shared", "-fPIC", "-o"])
            .arg(&beside)
            .arg(mocks.join(format!("{source}.cpp")))
            .arg(format!("-DSHIM=\"{SHIM}\""))
            .arg(format!("-DCOMPILER=\"{compiler}\""))
            .args(["-ldl", &format!("-Wl,-soname,{library}")])
            .output()
            .unwrap();
        assert!(ran.status.success(), "{source}: {}", String::from_utf8_lossy(&ran.stderr));
        std::fs::rename(&beside, &path).unwrap();
    }
    folder
}

/// The counts and settings of a mock, for the calling thread.
pub(crate) struct Knobs(libloading::Library);

impl Knobs {
    /// Those of the driver.
    pub(crate) fn open(folder: &Path) -> Knobs {
        Knobs::of(folder, "libcuda.so.1")
    }

    /// Those of any of the libraries.
    pub(crate) fn of(folder: &Path, library: &str) -> Knobs {
        // SAFETY: the library is a mock built above.
        Knobs(unsafe { libloading::Library::new(folder.join(library)) }.unwrap())
    }

    pub(crate) fn set(&self, name: &str, value: i64) {
        let name = CString::new(name).unwrap();
        // SAFETY: the type is that of the function in the mock.
        let set = unsafe { self.0.get::<unsafe extern "C" fn(*const c_char, c_long)>(b"mock_set\0") }.unwrap();
        // SAFETY: the name ends with a zero.
        unsafe { set(name.as_ptr(), value) };
    }

    pub(crate) fn get(&self, name: &str) -> i64 {
        let name = CString::new(name).unwrap();
        // SAFETY: the type is that of the function in the mock.
        let get = unsafe { self.0.get::<unsafe extern "C" fn(*const c_char) -> c_long>(b"mock_get\0") }.unwrap();
        // SAFETY: the name ends with a zero.
        unsafe { get(name.as_ptr()) }
    }

    /// Runs `work` with its call number `number` answering `code`, and names that call; the counts of the mock start from zero.
    pub(crate) fn failing<T>(&self, number: i64, code: i64, work: impl FnOnce() -> T) -> (String, T) {
        self.set("reset", 1);
        self.set("fail_code", code);
        self.set("fail_at", number);
        let result = work();
        self.set("fail_at", 0);
        (self.failed(), result)
    }

    /// Name of the call that was made to fail.
    pub(crate) fn failed(&self) -> String {
        // SAFETY: the type is that of the function in the mock.
        let failed = unsafe { self.0.get::<unsafe extern "C" fn() -> *const c_char>(b"mock_failed\0") }.unwrap();
        // SAFETY: the text is a constant.
        unsafe { CStr::from_ptr(failed()) }.to_str().unwrap().to_owned()
    }

    /// Names of the calls since the counts were reset, in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        // SAFETY: the type is that of the function in the mock.
        let call = unsafe { self.0.get::<unsafe extern "C" fn(c_long) -> *const c_char>(b"mock_call\0") }.unwrap();
        // SAFETY: the mock returns a constant text.
        let name = |number| unsafe { CStr::from_ptr(call(number)) }.to_str().unwrap().to_owned();
        (1..=self.get("calls")).map(name).collect()
    }

    /// Things of the driver that were made and not released, by kind.
    pub(crate) fn ledger(&self) -> Vec<(&'static str, i64)> {
        let kinds = ["memory", "host", "streams", "events", "modules", "graphs", "executables", "contexts"];
        kinds.into_iter().map(|kind| (kind, self.get(kind))).filter(|(_, count)| *count != 0).collect()
    }
}
