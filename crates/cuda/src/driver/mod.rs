//! A thin layer over CUDA's driver: everything is checked, everything is released, nothing is hidden.
//!
//! Errors while something is released cannot be returned; [`Context::synchronize`] returns the first of them.

mod api;
mod context;
mod graph;
mod memory;
mod module;
mod stream;
mod timer;

pub use context::Context;
pub use graph::Graph;
pub use memory::{Arena, Block, Flag, Pinned};
pub use module::{Function, Module};
pub use stream::Stream;
pub use timer::{Event, Timer};

pub(crate) use api::{Address, Handle};

use crate::error::GpuError;
use api::{DriverApi, device_attribute};
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// CUDA's driver, opened and initialised.
pub struct Driver {
    api: DriverApi,
    path: PathBuf,
    version: i32,
}

/// What the driver says of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Position among the devices that the driver sees, from 0.
    pub ordinal: usize,
    /// Product name.
    pub name: String,
    /// All of the device's memory.
    pub memory_bytes: u64,
    /// Compute capability, such as `[9, 0]`.
    pub capability: [i32; 2],
    /// Number of streaming multiprocessors.
    pub multiprocessors: i32,
    /// Peak clock of the multiprocessors.
    pub clock_khz: i32,
    /// Peak clock of the memory.
    pub memory_clock_khz: i32,
    /// Width of the memory bus.
    pub memory_bus_bits: i32,
    /// Size of the second-level cache in bytes.
    pub l2_bytes: i32,
}

impl DeviceInfo {
    /// What kernels are compiled for, with everything that this generation has: `sm_80`, `sm_90a`.
    pub fn architecture(&self) -> String {
        let [major, minor] = self.capability;
        format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
    }

    /// Bytes a second from and to memory, at both edges of its peak clock.
    pub fn memory_bytes_per_s(&self) -> f64 {
        f64::from(self.memory_clock_khz) * 2e3 * f64::from(self.memory_bus_bits) / 8.0
    }
}

impl Driver {
    /// Opens the driver at `path` (`libcuda.so.1`) and initialises it.
    ///
    /// # Errors
    /// It cannot be opened or does not start, for instance because there is no device.
    pub fn open(path: &Path) -> Result<Arc<Driver>, GpuError> {
        let mut driver = Driver { api: DriverApi::load(path)?, path: path.to_owned(), version: 0 };
        // SAFETY: cuInit takes flags, which must be 0.
        driver.check("cuInit", unsafe { (driver.api.cuInit)(0) })?;
        let mut version = 0;
        // SAFETY: the pointer is to a local number.
        driver.check("cuDriverGetVersion", unsafe { (driver.api.cuDriverGetVersion)(&mut version) })?;
        driver.version = version;
        Ok(Arc::new(driver))
    }

    /// The file from which the driver was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Newest CUDA that it runs: `13000` is 13.0.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Number of GPUs that the driver sees.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn device_count(&self) -> Result<usize, GpuError> {
        let mut count = 0;
        // SAFETY: the pointer is to a local number.
        self.check("cuDeviceGetCount", unsafe { (self.api.cuDeviceGetCount)(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Properties of the GPU with this ordinal.
    ///
    /// # Errors
    /// There is no such device, or the driver refuses.
    pub fn device(&self, ordinal: usize) -> Result<DeviceInfo, GpuError> {
        let device = self.device_handle(ordinal)?;
        let mut name = [0 as c_char; 256];
        // SAFETY: the name has room for 255 characters and the zero.
        self.check("cuDeviceGetName", unsafe { (self.api.cuDeviceGetName)(name.as_mut_ptr(), 255, device) })?;
        let mut memory = 0;
        // SAFETY: the pointer is to a local number.
        self.check("cuDeviceTotalMem", unsafe { (self.api.cuDeviceTotalMem_v2)(&mut memory, device) })?;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the pointer is to a local number.
            let code = unsafe { (self.api.cuDeviceGetAttribute)(&mut value, attribute, device) };
            self.check("cuDeviceGetAttribute", code).map(|()| value)
        };
        Ok(DeviceInfo {
            ordinal,
            // SAFETY: the last character was never written, so there is a zero.
            name: unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned(),
            memory_bytes: memory as u64,
            capability: [
                attribute(device_attribute::CAPABILITY_MAJOR)?,
                attribute(device_attribute::CAPABILITY_MINOR)?,
            ],
            multiprocessors: attribute(device_attribute::MULTIPROCESSORS)?,
            clock_khz: attribute(device_attribute::CLOCK_KHZ)?,
            memory_clock_khz: attribute(device_attribute::MEMORY_CLOCK_KHZ)?,
            memory_bus_bits: attribute(device_attribute::MEMORY_BUS_BITS)?,
            l2_bytes: attribute(device_attribute::L2_BYTES)?,
        })
    }

    fn device_handle(&self, ordinal: usize) -> Result<i32, GpuError> {
        let count = self.device_count()?;
        if ordinal >= count {
            return Err(GpuError::NoDevice { ordinal, count });
        }
        let mut device = 0;
        // SAFETY: the pointer is to a local number.
        self.check("cuDeviceGet", unsafe { (self.api.cuDeviceGet)(&mut device, ordinal as i32) })?;
        Ok(device)
    }

    /// An error that names the call and what its code means.
    fn check(&self, call: &'static str, code: i32) -> Result<(), GpuError> {
        if code == 0 { Ok(()) } else { Err(GpuError::Call { call, code, meaning: self.meaning(code) }) }
    }

    fn meaning(&self, code: i32) -> String {
        let text = |function: unsafe extern "C" fn(i32, *mut *const c_char) -> i32| {
            let mut text = std::ptr::null();
            // SAFETY: the pointer is to a local pointer.
            let is_known = unsafe { function(code, &mut text) } == 0 && !text.is_null();
            // SAFETY: on success the text is a constant of the driver's.
            is_known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        match (text(self.api.cuGetErrorName), text(self.api.cuGetErrorString)) {
            (Some(name), Some(meaning)) => format!("{name}, {meaning}"),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => "a code that this driver does not explain".to_owned(),
        }
    }
}
