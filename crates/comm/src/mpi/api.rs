//! Functions and constants of an MPI library, by the type of its handles: `i32` in MPICH's family, pointers and
//! pointer-sized integers, both `usize` here, in Open MPI and the standard ABI.

use super::Family;
use crate::CommError;
use libloading::os::unix::Library;
use std::ffi::{c_char, c_int};
use std::time::Duration;

/// Declares the table of functions, and `load`, which fails where one is missing.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident<$handle:ident> { $(fn $name:ident($($type:ty),* $(,)?);)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the names are MPI's")]
        pub(super) struct $table<$handle> {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) -> c_int,)*
        }

        #[allow(non_snake_case, reason = "the names are MPI's")]
        impl<$handle: 'static> $table<$handle> {
            fn load(library: &'static Library, path: &str) -> Result<Self, CommError> {
                $(
                    // SAFETY: the type is that of the function in MPI's standard, with the handles of this library's family; the
                    // library stays open.
                    let $name = unsafe {
                        let symbol = library.get::<unsafe extern "C" fn($($type),*) -> c_int>(concat!(stringify!($name), "\0"));
                        *symbol.map_err(|_| CommError::NoMpi {
                            reason: format!("{path} has no function {}", stringify!($name)),
                        })?
                    };
                )*
                Ok($table { $($name,)* })
            }
        }
    };
}

functions!(
    /// The part of MPI that this program uses; all return an error code.
    Functions<H> {
        fn MPI_Init_thread(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
        fn MPI_Finalize();
        fn MPI_Comm_dup(H, *mut H);
        fn MPI_Comm_rank(H, *mut c_int);
        fn MPI_Comm_size(H, *mut c_int);
        fn MPI_Comm_set_errhandler(H, H);
        fn MPI_Error_string(c_int, *mut c_char, *mut c_int);
        fn MPI_Isend(*const u8, c_int, H, c_int, c_int, H, *mut H);
        fn MPI_Irecv(*mut u8, c_int, H, c_int, c_int, H, *mut H);
        fn MPI_Testall(c_int, *mut H, *mut c_int, usize);
        fn MPI_Iprobe(c_int, c_int, H, *mut c_int, usize);
    }
);

/// What `mpi.h` defines for one family.
pub(super) struct Constants<H> {
    pub(super) world: H,
    pub(super) byte: H,
    pub(super) errors_return: H,
    pub(super) request_null: H,
    /// For functions that give one status or several.
    pub(super) status_ignore: usize,
    pub(super) thread_funneled: c_int,
}

/// An opened library.
pub(super) struct Api<H> {
    pub(super) functions: Functions<H>,
    pub(super) constants: Constants<H>,
}

/// A type of handles.
pub(super) trait Handle: Copy + 'static {
    /// Between the last message of all ranks and the end of MPI.
    const QUIET: Duration;

    /// The constants of a library of this family, which has such handles.
    fn constants(family: Family, library: &'static Library, path: &str) -> Result<Constants<Self>, CommError>;
}

impl<H: Handle> Api<H> {
    pub(super) fn load(family: Family, library: &'static Library, path: &str) -> Result<Api<H>, CommError> {
        let constants = H::constants(family, library, path)?;
        Ok(Api { functions: Functions::load(library, path)?, constants })
    }
}

/// MPICH, Intel MPI, MVAPICH, Cray MPICH: `mpi.h` of MPICH 3 to 4, the "MPICH ABI compatibility initiative".
impl Handle for i32 {
    /// The end of MPICH before 4.2 over UCX waits for ever where a rank has served its connections while another one was closing them. So
    /// all ranks are quiet first. The last message may take this long, if it is lost and sent again.
    const QUIET: Duration = Duration::from_millis(500);

    fn constants(_: Family, _: &'static Library, _: &str) -> Result<Constants<i32>, CommError> {
        Ok(Constants {
            world: 0x4400_0000,
            byte: 0x4c00_010d,
            errors_return: 0x5400_0001,
            request_null: 0x2c00_0000,
            status_ignore: 1,
            thread_funneled: 1,
        })
    }
}

/// Open MPI 4 and 5, whose handles are addresses of exported objects, and the standard ABI of MPI 5.0 (section 20).
impl Handle for usize {
    const QUIET: Duration = Duration::ZERO;

    fn constants(family: Family, library: &'static Library, path: &str) -> Result<Constants<usize>, CommError> {
        if family == Family::StandardAbi {
            return Ok(Constants {
                world: 0x101,
                byte: 0x247,
                errors_return: 0x142,
                request_null: 0x180,
                status_ignore: 0,
                thread_funneled: 1024,
            });
        }
        let address = |name: &str| {
            // SAFETY: only the address of the object is taken, which is what the symbol itself is.
            let symbol = unsafe { library.get::<usize>(name) };
            symbol
                .map(|symbol| *symbol)
                .map_err(|_| CommError::NoMpi { reason: format!("{path} has no object {name}") })
        };
        Ok(Constants {
            world: address("ompi_mpi_comm_world")?,
            byte: address("ompi_mpi_byte")?,
            errors_return: address("ompi_mpi_errors_return")?,
            request_null: address("ompi_request_null")?,
            status_ignore: 0,
            thread_funneled: 1,
        })
    }
}
