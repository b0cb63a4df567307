//! Work in the order in which it was given.

use super::api::{CAPTURE_THREAD_LOCAL, NON_BLOCKING};
use super::context::Inner;
use super::{Block, Context, Event, Function, Graph, Handle, Pinned};
use crate::error::GpuError;
use std::any::Any;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something that must stay until the device is done with it.
pub(super) type Kept = Arc<dyn Any + Send + Sync>;

/// Work in the order in which it was given; that of other streams runs beside it.
pub struct Stream {
    context: Arc<Inner>,
    pub(super) handle: Handle,
    state: Mutex<State>,
}

/// What work that may still run uses.
#[derive(Default)]
struct State {
    capturing: bool,
    kept: Vec<Kept>,
}

impl Stream {
    pub(super) fn new(context: &Context) -> Result<Stream, GpuError> {
        let context = context.0.clone();
        context.bind()?;
        let mut handle = 0;
        // SAFETY: the pointer is to a local handle.
        let code = unsafe { (context.driver.api.cuStreamCreate)(&mut handle, NON_BLOCKING) };
        context.check("cuStreamCreate", code)?;
        Ok(Stream { context, handle, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what a graph replays, once; outside of a capture the driver waits before it frees what it uses.
    fn keep_for_graph(&self, used: &Arc<impl Any + Send + Sync>) {
        if self.state().capturing {
            self.keep(used.clone());
        }
    }

    /// Keeps memory that a library gets for work on this stream, as long as a graph that is being recorded replays it.
    pub(crate) fn keep_block(&self, block: &Block) {
        self.keep_for_graph(block.memory());
    }

    fn keep(&self, used: Kept) {
        let mut state = self.state();
        if !state.kept.iter().any(|kept| std::ptr::addr_eq(Arc::as_ptr(kept), Arc::as_ptr(&used))) {
            state.kept.push(used);
        }
    }

    /// The handle, for libraries that give work to this stream.
    pub(crate) fn raw(&self) -> Handle {
        self.handle
    }

    /// Waits until all work is done.
    ///
    /// # Errors
    /// Some of it failed.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        self.context.bind()?;
        // SAFETY: the handle is of this stream.
        let code = unsafe { (self.context.driver.api.cuStreamSynchronize)(self.handle) };
        self.context.check("cuStreamSynchronize", code)?;
        let mut state = self.state();
        if !state.capturing {
            state.kept.clear();
        }
        Ok(())
    }

    /// Copies from the host to the device and waits.
    ///
    /// # Errors
    /// The lengths differ, or the driver refuses.
    pub fn upload(&self, from: &[u8], to: &Block) -> Result<(), GpuError> {
        same_length(from.len(), to.bytes())?;
        self.context.bind()?;
        let (api, source) = (&self.context.driver.api, from.as_ptr().cast());
        // SAFETY: both are of this length, and the source is borrowed until the stream has been waited for.
        let code = unsafe { (api.cuMemcpyHtoDAsync_v2)(to.address(), source, from.len(), self.handle) };
        self.context.check("cuMemcpyHtoDAsync", code)?;
        self.synchronize()
    }

    /// Copies from the device to the host and waits.
    ///
    /// # Errors
    /// The lengths differ, or the driver refuses.
    pub fn download(&self, from: &Block, to: &mut [u8]) -> Result<(), GpuError> {
        same_length(from.bytes(), to.len())?;
        self.context.bind()?;
        let (api, target) = (&self.context.driver.api, to.as_mut_ptr().cast());
        // SAFETY: both are of this length, and the target is borrowed until the stream has been waited for.
        let code = unsafe { (api.cuMemcpyDtoHAsync_v2)(target, from.address(), to.len(), self.handle) };
        self.context.check("cuMemcpyDtoHAsync", code)?;
        self.synchronize()
    }

    /// Copies all of `from` to the device, some time.
    ///
    /// # Errors
    /// The lengths differ, or the driver refuses.
    pub fn copy_in(&self, from: &Pinned, to: &Block) -> Result<(), GpuError> {
        same_length(from.bytes(), to.bytes())?;
        self.context.bind()?;
        self.keep(from.memory().clone());
        self.keep_for_graph(to.memory());
        let (api, source) = (&self.context.driver.api, from.memory().address as *const c_void);
        // SAFETY: both are of this length and kept until the copy is done.
        let code = unsafe { (api.cuMemcpyHtoDAsync_v2)(to.address(), source, to.bytes(), self.handle) };
        self.context.check("cuMemcpyHtoDAsync", code)
    }

    /// Copies all of `from` to the host, some time.
    ///
    /// # Errors
    /// The lengths differ, or the driver refuses.
    pub fn copy_out(&self, from: &Block, to: &mut Pinned) -> Result<(), GpuError> {
        same_length(from.bytes(), to.bytes())?;
        self.context.bind()?;
        self.keep(to.memory().clone());
        self.keep_for_graph(from.memory());
        let (api, target) = (&self.context.driver.api, to.memory().address as *mut c_void);
        // SAFETY: both are of this length and kept until the copy is done.
        let code = unsafe { (api.cuMemcpyDtoHAsync_v2)(target, from.address(), from.bytes(), self.handle) };
        self.context.check("cuMemcpyDtoHAsync", code)
    }

    /// Copies within the device, some time.
    ///
    /// # Errors
    /// The lengths differ, or the driver refuses.
    pub fn copy(&self, from: &Block, to: &Block) -> Result<(), GpuError> {
        same_length(from.bytes(), to.bytes())?;
        self.context.bind()?;
        self.keep_for_graph(from.memory());
        self.keep_for_graph(to.memory());
        let api = &self.context.driver.api;
        // SAFETY: both blocks are of this length.
        let code = unsafe { (api.cuMemcpyDtoDAsync_v2)(to.address(), from.address(), to.bytes(), self.handle) };
        self.context.check("cuMemcpyDtoDAsync", code)
    }

    /// Sets every byte, some time.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn fill(&self, block: &Block, byte: u8) -> Result<(), GpuError> {
        self.context.bind()?;
        self.keep_for_graph(block.memory());
        let api = &self.context.driver.api;
        // SAFETY: the block is of this length.
        let code = unsafe { (api.cuMemsetD8Async)(block.address(), byte, block.bytes(), self.handle) };
        self.context.check("cuMemsetD8Async", code)
    }

    /// Runs a kernel, some time, on blocks for the memory among its parameters, in order, each at least as large as the kernel says that
    /// it uses.
    ///
    /// # Errors
    /// The blocks are not what it takes, or the driver refuses.
    pub fn launch(&self, function: &Function, blocks: &[Block]) -> Result<(), GpuError> {
        let mut packed = function.packed(blocks)?;
        self.context.bind()?;
        self.keep_for_graph(&function.module);
        blocks.iter().for_each(|block| self.keep_for_graph(block.memory()));
        let mut pointers: Vec<*mut c_void> = packed.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let ([x, y, z], [a, b, c]) = (function.blocks, function.threads);
        let (launch, nothing) = (self.context.driver.api.cuLaunchKernel, std::ptr::null_mut());
        // SAFETY: there is one pointer for each parameter, to a value of its type, which the driver copies.
        let code = unsafe { launch(function.handle, x, y, z, a, b, c, 0, self.handle, pointers.as_mut_ptr(), nothing) };
        self.context.check("cuLaunchKernel", code)
    }

    /// Notes in `event` when the work given so far is done.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn record(&self, event: &Event) -> Result<(), GpuError> {
        self.context.bind()?;
        // SAFETY: both handles are valid.
        let code = unsafe { (self.context.driver.api.cuEventRecord)(event.handle, self.handle) };
        self.context.check("cuEventRecord", code)
    }

    /// Lets work that is given from now on wait for what `event` notes.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn wait(&self, event: &Event) -> Result<(), GpuError> {
        self.context.bind()?;
        // SAFETY: both handles are valid.
        let code = unsafe { (self.context.driver.api.cuStreamWaitEvent)(self.handle, event.handle, 0) };
        self.context.check("cuStreamWaitEvent", code)
    }

    /// Records the work that `work` gives instead of running it.
    ///
    /// # Errors
    /// Those of `work`, or something cannot be recorded. The stream is usable afterwards.
    pub fn capture(&self, work: impl FnOnce() -> Result<(), GpuError>) -> Result<Graph, GpuError> {
        if self.state().capturing {
            return Err(GpuError::Capturing);
        }
        self.synchronize()?;
        let api = &self.context.driver.api;
        // SAFETY: the handle is of this stream.
        let code = unsafe { (api.cuStreamBeginCapture_v2)(self.handle, CAPTURE_THREAD_LOCAL) };
        self.context.check("cuStreamBeginCapture", code)?;
        self.state().capturing = true;
        let worked = work();
        let mut graph = 0;
        // SAFETY: the stream is capturing; the pointer is to a local handle.
        let code = unsafe { (api.cuStreamEndCapture)(self.handle, &mut graph) };
        let kept = {
            let mut state = self.state();
            state.capturing = false;
            std::mem::take(&mut state.kept)
        };
        let ended = self.context.check("cuStreamEndCapture", code);
        if worked.is_err() || ended.is_err() {
            if graph != 0 {
                // SAFETY: the graph was made above and is used no more.
                self.context.release("cuGraphDestroy", || unsafe { (api.cuGraphDestroy)(graph) });
            }
            return Err(worked.and(ended).expect_err("one of them failed"));
        }
        Graph::new(self.context.clone(), graph, kept)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let api = &self.context.driver.api;
        // SAFETY: the handle is of this stream.
        let finish = || unsafe { (api.cuStreamSynchronize)(self.handle) };
        // SAFETY: the handle is of this stream, which is used no more.
        self.context.release_after("cuStreamDestroy", finish, || unsafe { (api.cuStreamDestroy_v2)(self.handle) });
    }
}

fn same_length(from: usize, to: usize) -> Result<(), GpuError> {
    if from == to { Ok(()) } else { Err(GpuError::Length { from, to }) }
}
