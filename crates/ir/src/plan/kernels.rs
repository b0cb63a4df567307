//! The kernels that a target chooses for the calls of a plan, once, when the plan is compiled.

use super::{Needs, Target, kernel_name};
use crate::graph::{Graph, NodeId};
use crate::ops::Storage;
use crate::passes::invariant::Invariant;
use std::any::Any;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// A kernel with its sizes, as the executor of its target will run it.
pub trait LoweredKernel: Any + Send + Sync {
    /// A short description of the algorithm.
    fn name(&self) -> String;

    /// Memory that it needs beside its operands.
    fn needs(&self) -> Needs;
}

impl fmt::Debug for dyn LoweredKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// The operation of a node, as printed, and its path in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelNode {
    /// The operation with its attributes, as printed.
    pub op: String,
    /// Path of the operation in the model.
    pub path: String,
}

impl KernelNode {
    /// The node of this number.
    pub fn of(graph: &Graph, node: NodeId) -> KernelNode {
        KernelNode { op: graph.node(node).op.to_string(), path: graph.path(node).to_string() }
    }
}

impl fmt::Display for KernelNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at `{}`", self.op, self.path)
    }
}

/// Why a target has no kernel for a node: an error of the target's own type.
pub type Refusal = Box<dyn Error + Send + Sync>;

/// The operations of a graph that a target has no kernels for.
#[derive(Clone, Debug)]
pub struct UnsupportedOps {
    /// Name of the target.
    pub target: String,
    /// One error of the target for each operation.
    pub operations: Vec<Arc<dyn Error + Send + Sync>>,
    /// How many there are of each kind of operation, by its name.
    pub kinds: BTreeMap<&'static str, usize>,
}

impl UnsupportedOps {
    /// The operations, each with the reason.
    pub fn list(&self) -> String {
        self.operations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }
}

impl fmt::Display for UnsupportedOps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = self.kinds.iter().map(|(kind, count)| format!("{kind} ({count})")).collect::<Vec<_>>().join(", ");
        write!(f, "there are no kernels on {} for: {kinds}", self.target)?;
        self.operations.first().map_or(Ok(()), |first| write!(f, "; the first is {first}"))
    }
}

impl Error for UnsupportedOps {}

impl PartialEq for UnsupportedOps {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for UnsupportedOps {}

/// The kernel of each node that one runs; none on a target without kernels.
#[derive(Clone, Debug, Default)]
pub struct Kernels(BTreeMap<NodeId, Arc<dyn LoweredKernel>>);

impl Kernels {
    /// Those of a graph whose order is final.
    ///
    /// # Errors
    /// All operations without a kernel.
    pub(crate) fn choose(graph: &Graph, target: &dyn Target, invariant: &Invariant) -> Result<Kernels, UnsupportedOps> {
        let (mut kernels, mut operations, mut kinds) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        for id in graph.ids().filter(|&id| graph.node(id).op.rule().storage() == Storage::Computed) {
            match target.lower(graph, id, invariant) {
                Ok(kernel) => kernels.extend(kernel.map(|kernel| (id, kernel))),
                Err(refusal) => {
                    operations.push(refusal.into());
                    *kinds.entry(kernel_name(graph, id)).or_insert(0) += 1;
                }
            }
        }
        match operations.is_empty() {
            true => Ok(Kernels(kernels)),
            false => Err(UnsupportedOps { target: target.name().to_string(), operations, kinds }),
        }
    }

    /// The kernel that runs a node.
    pub fn of(&self, node: NodeId) -> Option<&Arc<dyn LoweredKernel>> {
        self.0.get(&node)
    }
}
