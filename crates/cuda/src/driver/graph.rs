//! Recorded work.

use super::context::Inner;
use super::stream::Kept;
use super::{Handle, Stream};
use crate::error::GpuError;
use std::sync::Arc;

/// Work that was recorded once and is launched as a whole. It keeps what the work uses.
pub struct Graph {
    context: Arc<Inner>,
    executable: Handle,
    nodes: usize,
    _kept: Vec<Kept>,
}

impl Graph {
    /// Makes `graph` executable, and releases it.
    pub(super) fn new(context: Arc<Inner>, graph: Handle, kept: Vec<Kept>) -> Result<Graph, GpuError> {
        let api = &context.driver.api;
        let (mut nodes, mut executable) = (0, 0);
        // SAFETY: without an array for nodes their number is written to a local number.
        let code = unsafe { (api.cuGraphGetNodes)(graph, std::ptr::null_mut(), &mut nodes) };
        let made = context.check("cuGraphGetNodes", code).and_then(|()| {
            // SAFETY: the pointer is to a local handle.
            let code = unsafe { (api.cuGraphInstantiateWithFlags)(&mut executable, graph, 0) };
            context.check("cuGraphInstantiate", code)
        });
        // SAFETY: the graph is used no more; its executable is independent of it.
        context.release("cuGraphDestroy", || unsafe { (api.cuGraphDestroy)(graph) });
        made?;
        Ok(Graph { context, executable, nodes, _kept: kept })
    }

    /// Kernels, copies and fills in it.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Runs all of it, some time.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn launch(&self, stream: &Stream) -> Result<(), GpuError> {
        self.context.bind()?;
        // SAFETY: both handles are valid; what the work uses is kept by this graph, which waits before it goes.
        let code = unsafe { (self.context.driver.api.cuGraphLaunch)(self.executable, stream.handle) };
        self.context.check("cuGraphLaunch", code)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let api = &self.context.driver.api;
        // SAFETY: takes nothing; the context is current.
        let finish = || unsafe { (api.cuCtxSynchronize)() };
        // SAFETY: nothing of the executable runs any more.
        self.context
            .release_after("cuGraphExecDestroy", finish, || unsafe { (api.cuGraphExecDestroy)(self.executable) });
    }
}
