//! The mock as a device of executors.

#![allow(dead_code, reason = "each file of tests uses a part")]

use bessemer_cuda::{CudaDevice, CudaOptions, GpuError};
use std::path::Path;

/// Options of the first device of the mocks in this folder, whose steps are replayed unless it is `eager`; compiled kernels are kept
/// beside them.
pub(crate) fn options(folder: &Path, eager: bool) -> CudaOptions {
    CudaOptions {
        gpu_libraries: vec![folder.to_owned()],
        ordinal: 0,
        cubins: folder.join("cubins"),
        eager,
        check: false,
        tuning: None,
        no_epilogues: false,
    }
}

/// The first device of the mocks in this folder.
///
/// # Errors
/// A call of the mocks fails.
pub(crate) fn open(folder: &Path, eager: bool) -> Result<CudaDevice, GpuError> {
    CudaDevice::open(&options(folder, eager))
}
