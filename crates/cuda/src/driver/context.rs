//! A device in use.

use super::{Arena, DeviceInfo, Driver, Event, Flag, Handle, Module, Pinned, Stream, Timer};
use crate::error::GpuError;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A device in use. Copies are of one and the same; the last one releases it.
#[derive(Clone)]
pub struct Context(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub driver: Arc<Driver>,
    info: DeviceInfo,
    device: i32,
    handle: Handle,
    release_error: Mutex<Option<GpuError>>,
    /// What the device was given last, as an error of it goes on.
    given: Mutex<String>,
    lost: OnceLock<Lost>,
}

/// What the device failed with for good, and what it was given.
struct Lost {
    cause: String,
    given: String,
}

/// Codes after which a context answers every call with the same: uncorrectable errors of memory and links, errors that the device
/// contained, a context that was destroyed, what a kernel did wrong (illegal address, timeout, assertion, stack, instruction, alignment,
/// address space, program counter, launch, tensor memory), a client that the server of MPS ended, an external device that failed, or nobody
/// knows (CUDA driver API, `CUresult`).
const STICKY: [i32; 17] = [214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999];

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        let (driver, release_error) = (driver.clone(), Mutex::new(None));
        let (given, lost) = (Mutex::default(), OnceLock::new());
        let context = Context(Arc::new(Inner { driver, info, device, handle, release_error, given, lost }));
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

    /// Whether the device can still be used.
    ///
    /// # Errors
    /// [`GpuError::Lost`].
    pub fn is_alive(&self) -> Result<(), GpuError> {
        self.0.is_alive()
    }

    /// Notes what the device is given next, which an error of it says, such as ` in step 3`.
    pub fn note(&self, given: String) {
        *locked(&self.0.given) = given;
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
        self.0.check("cuMemGetInfo", code)?;
        Ok((free, total))
    }

    /// Waits for everything on the device.
    ///
    /// # Errors
    /// Something that ran on the device failed.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        self.0.bind()?;
        // SAFETY: takes nothing; the context is current.
        self.0.check("cuCtxSynchronize", unsafe { (self.0.driver.api.cuCtxSynchronize)() })
    }

    /// Why something could not be released since the last call, of the first that could not.
    pub fn take_release_error(&self) -> Option<GpuError> {
        locked(&self.0.release_error).take()
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
    /// An error that names the call and what its code means. One that the device does not recover from is kept: it is the error of all that
    /// is asked of it from then on, and the driver is not called again.
    pub(super) fn check(&self, call: &'static str, code: i32) -> Result<(), GpuError> {
        let checked = self.driver.check(call, code);
        match checked {
            Err(cause) if STICKY.contains(&code) => {
                let given = || locked(&self.given).clone();
                self.lost.get_or_init(|| Lost { cause: cause.to_string(), given: given() });
                self.is_alive()
            }
            checked => checked,
        }
    }

    pub(super) fn is_alive(&self) -> Result<(), GpuError> {
        match self.lost.get() {
            Some(Lost { cause, given }) => Err(GpuError::Lost { cause: cause.clone(), given: given.clone() }),
            None => Ok(()),
        }
    }

    /// Makes this the context of the calling thread.
    pub(super) fn bind(&self) -> Result<(), GpuError> {
        self.is_alive()?;
        // SAFETY: the handle is of a context that is retained.
        self.check("cuCtxSetCurrent", unsafe { (self.driver.api.cuCtxSetCurrent)(self.handle) })
    }

    /// Releases something that is not used any more with `release`, and notes the first error for [`Context::take_release_error`]. Of a device that
    /// is lost nothing is released.
    pub(super) fn release(&self, call: &'static str, release: impl FnOnce() -> i32) {
        self.release_after(call, || 0, release);
    }

    /// As [`release`](Self::release), after `wait` has waited until nothing uses it.
    pub(super) fn release_after(&self, call: &'static str, wait: impl FnOnce() -> i32, release: impl FnOnce() -> i32) {
        let bound = self.bind();
        let steps = || {
            self.is_alive()?;
            let waited = self.check(call, wait());
            self.is_alive()?;
            waited.and(self.check(call, release()))
        };
        let released = steps();
        if let Err(error) = bound.and(released) {
            locked(&self.release_error).get_or_insert(error);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_alive().is_ok() {
            // SAFETY: the context was retained once by `new`, and nothing of it is left.
            unsafe { (self.driver.api.cuDevicePrimaryCtxRelease_v2)(self.device) };
        }
    }
}
