//! Points in a stream's work, and the time between two of them.

use super::context::Inner;
use super::{Context, Handle, Stream};
use crate::error::GpuError;
use std::sync::Arc;
use std::time::Duration;

/// A point in a stream's work.
pub struct Event {
    context: Arc<Inner>,
    pub(super) handle: Handle,
}

impl Event {
    pub(super) fn new(context: &Context) -> Result<Event, GpuError> {
        let context = context.0.clone();
        context.bind()?;
        let mut handle = 0;
        // SAFETY: the pointer is to a local handle.
        let code = unsafe { (context.driver.api.cuEventCreate)(&mut handle, 0) };
        context.check("cuEventCreate", code)?;
        Ok(Event { context, handle })
    }

    /// Waits until the device got there.
    ///
    /// # Errors
    /// Work before it failed.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        self.context.bind()?;
        // SAFETY: the handle is of this event.
        let code = unsafe { (self.context.driver.api.cuEventSynchronize)(self.handle) };
        self.context.check("cuEventSynchronize", code)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let destroy = self.context.driver.api.cuEventDestroy_v2;
        // SAFETY: the handle is of this event, which is used no more.
        self.context.release("cuEventDestroy", || unsafe { destroy(self.handle) });
    }
}

/// Time on the device's own clock.
pub struct Timer {
    start: Event,
    stop: Event,
}

impl Timer {
    pub(super) fn new(context: &Context) -> Result<Timer, GpuError> {
        Ok(Timer { start: context.event()?, stop: context.event()? })
    }

    /// How long the device takes for the work that `work` gives to `stream`. Waits for it.
    ///
    /// # Errors
    /// Those of `work`, or the driver refuses.
    pub fn time(&self, stream: &Stream, work: impl FnOnce() -> Result<(), GpuError>) -> Result<Duration, GpuError> {
        stream.record(&self.start)?;
        work()?;
        stream.record(&self.stop)?;
        self.stop.synchronize()?;
        let context = &self.start.context;
        let mut milliseconds = 0.0;
        // SAFETY: the pointer is to a local number; both events were recorded.
        let code =
            unsafe { (context.driver.api.cuEventElapsedTime)(&mut milliseconds, self.start.handle, self.stop.handle) };
        context.check("cuEventElapsedTime", code)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}
