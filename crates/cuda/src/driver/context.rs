//! A device in use.

use super::{Arena, DeviceInfo, Driver, Event, Flag, Handle, Module, Pinned, Stream, Timer};
use crate::error::GpuError;
use std::sync::{Arc, Mutex, PoisonError};

/// A device in use. Copies are of one and the same; the last one releases it.
#[derive(Clone)]
pub struct Context(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub driver: Arc<Driver>,
    info: DeviceInfo,
    device: i32,
    handle: Handle,
    release_error: Mutex<Option<GpuError>>,
}

impl Context {
    /// Takes the primary context of the device, which libraries of CUDA share.
    ///
    /// # Errors
    /// There is no such device, or it cannot be used.
    pub fn new(driver: &Arc<Driver>, ordinal: usize) -> Result<Context, GpuError> {
        let device = driver.device_handle(ordinal)?;
        let info = driver.device(ordinal)?;
        let mut handle = 0;
        // SAFETY: the pointer is to a local handle, the device comes from the driver.
        let code = unsafe { (driver.api.cuDevicePrimaryCtxRetain)(&mut handle, device) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        let release_error = Mutex::new(None);
        let context = Context(Arc::new(Inner { driver: driver.clone(), info, device, handle, release_error }));
        context.0.bind()?;
        Ok(context)
    }

    /// Properties of the device of this context.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Makes this the context of the calling thread, for libraries that use what is current.
    pub(crate) fn bind(&self) -> Result<(), GpuError> {
        self.0.bind()
    }

    /// Bytes of memory that are free, and all.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn memory(&self) -> Result<(usize, usize), GpuError> {
        self.0.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to local numbers.
        let code = unsafe { (self.0.driver.api.cuMemGetInfo_v2)(&mut free, &mut total) };
        self.0.driver.check("cuMemGetInfo", code)?;
        Ok((free, total))
    }

    /// Waits for everything on the device.
    ///
    /// # Errors
    /// Something that ran on the device failed, or something could not be released since the last call.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        self.0.bind()?;
        // SAFETY: takes nothing; the context is current.
        self.0.driver.check("cuCtxSynchronize", unsafe { (self.0.driver.api.cuCtxSynchronize)() })?;
        let failed = self.0.release_error.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed.map_or(Ok(()), Err)
    }

    /// Creates a stream of this context.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn stream(&self) -> Result<Stream, GpuError> {
        Stream::new(self)
    }

    /// Creates an event that orders streams of this context.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn event(&self) -> Result<Event, GpuError> {
        Event::new(self)
    }

    /// Creates a timer for work on streams of this context.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn timer(&self) -> Result<Timer, GpuError> {
        Timer::new(self)
    }

    /// One piece of the device's memory.
    ///
    /// # Errors
    /// There is not so much free.
    pub fn arena(&self, bytes: usize) -> Result<Arena, GpuError> {
        Arena::new(self, bytes)
    }

    /// Memory of the host that the device copies from and to by itself.
    ///
    /// # Errors
    /// There is not so much free.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned, GpuError> {
        Pinned::new(self, bytes)
    }

    /// A number of the host that kernels read.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn flag(&self) -> Result<Flag, GpuError> {
        Flag::new(self)
    }

    /// Loads compiled kernels.
    ///
    /// # Errors
    /// They are not for this device.
    pub fn module(&self, cubin: &[u8]) -> Result<Module, GpuError> {
        Module::new(self, cubin)
    }
}

impl Inner {
    /// Makes this the context of the calling thread.
    pub(super) fn bind(&self) -> Result<(), GpuError> {
        // SAFETY: the handle is of a context that is retained.
        self.driver.check("cuCtxSetCurrent", unsafe { (self.driver.api.cuCtxSetCurrent)(self.handle) })
    }

    /// Releases something with `release`, and notes the first error for [`Context::synchronize`].
    pub(super) fn release(&self, call: &'static str, release: impl FnOnce() -> i32) {
        let bound = self.bind();
        let released = self.driver.check(call, release());
        if let Err(error) = bound.and(released) {
            self.release_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the context was retained once by `new`, and nothing of it is left.
        unsafe { (self.driver.api.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}
