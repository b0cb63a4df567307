//! Tables of foreign functions, filled when a library is opened.
//!
//! Codes are plain `i32` and handles plain `usize`, so that a newer library may return what this program does not know.

use crate::error::GpuError;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::path::Path;

/// Opens a library by its absolute path. Libraries that ask for it by its bare name later get the same one.
///
/// # Errors
/// The file is no library for this machine, or needs one that is missing.
pub(crate) fn open(path: &Path) -> Result<Library, GpuError> {
    // SAFETY: initialisers of the libraries opened here are those of CUDA, which may run in any thread at any time.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    library.map_err(|error| GpuError::CannotOpen { path: path.to_owned(), reason: reason(&error, path) })
}

/// What the dynamic linker says, without the path.
fn reason(error: &libloading::Error, path: &Path) -> String {
    let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let said = cause.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&cause);
    said.to_owned()
}

/// Declares a table of foreign functions: a struct with a field for each, and `load`, which fails where one is missing.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $(fn $name:ident($($type:ty),* $(,)?) -> $result:ty;)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the names are CUDA's")]
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> $result,)*
            _library: libloading::os::unix::Library,
        }

        #[allow(non_snake_case, reason = "the names are CUDA's")]
        impl $table {
            /// # Errors
            /// The library cannot be opened, or lacks one of the functions.
            pub(crate) fn load(path: &std::path::Path) -> Result<Self, $crate::error::GpuError> {
                let library = $crate::library::open(path)?;
                $(
                    // SAFETY: the type is that of the function in the library's header; the table keeps the library open.
                    let $name = unsafe {
                        let symbol = library.get::<unsafe extern "C" fn($($type),*) -> $result>(concat!(stringify!($name), "\0"));
                        *symbol.map_err(|_| $crate::error::GpuError::NoFunction {
                            path: path.to_owned(),
                            function: stringify!($name),
                        })?
                    };
                )*
                Ok($table { $($name,)* _library: library })
            }
        }
    };
}
pub(crate) use functions;
