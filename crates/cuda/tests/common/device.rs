//! The mock as a device of executors.

use bessemer_cuda::{CudaDevice, CudaOptions, GpuError};
use std::path::Path;

/// The first device of the mocks in this folder, whose steps are replayed unless it is `eager`; compiled kernels are kept beside
/// them.
///
/// # Errors
/// A call of the mocks fails.
pub(crate) fn open(folder: &Path, eager: bool) -> Result<CudaDevice, GpuError> {
    let cubins = folder.join("cubins");
    let (gpu_libraries, tuning) = (vec![folder.to_owned()], None);
    CudaDevice::open(&CudaOptions { gpu_libraries, ordinal: 0, cubins, eager, tuning, no_epilogues: false })
}
