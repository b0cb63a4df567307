//! The mock as a device of executors.

use bessemer_cuda::{CudaDevice, CudaOptions};
use std::path::Path;

/// The first device of the mocks in this folder; compiled kernels are kept beside them.
pub(crate) fn gpu(folder: &Path) -> CudaDevice {
    let options = CudaOptions { gpu_libraries: vec![folder.to_owned()], ordinal: 0, cubins: folder.join("cubins") };
    CudaDevice::open(&options).unwrap()
}
