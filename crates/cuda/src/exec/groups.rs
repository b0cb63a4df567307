//! Groups of regions that are launched as one: their tables in the device's memory.

use super::executor::{BoundStep, Shared};
use crate::driver::Block;
use crate::error::GpuError;
use crate::kgen::{Kernel, Member};
use crate::lower::Group;
use bessemer_ir::NodeId;
use bessemer_ir::plan::{Plan, node_cost};
use std::ops::Range;
use std::time::Duration;

/// Bytes to which tables are aligned.
const ALIGNMENT: usize = 256;

/// A group whose table has a place among those of the plan.
pub(super) struct Tabled {
    group: Group,
    place: Range<usize>,
}

impl Tabled {
    /// Behind the `end` bytes of other tables.
    pub(super) fn new(group: Group, end: &mut usize) -> Tabled {
        let first = end.next_multiple_of(ALIGNMENT);
        *end = first + group.cut.table_bytes(group.operands.len());
        Tabled { group, place: first..*end }
    }

    pub(super) fn kernel(&self) -> &Kernel {
        &self.group.kernel
    }

    /// Fills in the table. `guarded` is the kernel that takes the halt, where there is one.
    ///
    /// # Errors
    /// The driver refuses.
    pub(super) fn bind(&self, shared: &Shared<'_>, guarded: Option<&Kernel>) -> Result<BoundStep, GpuError> {
        let Group { kernel, cut, operands } = &self.group;
        let mut kept = Vec::new();
        let mut members = Vec::new();
        for values in operands {
            let elements = values.iter().map(|&value| shared.plan.graph.ty(value).shape.elements()).max();
            let blocks = values.iter().map(|&value| shared.memory.value(shared.plan, value));
            let blocks = blocks.collect::<Result<Vec<Block>, GpuError>>()?;
            let addresses = blocks.iter().map(Block::address).collect();
            members.push(Member { addresses, elements: elements.unwrap_or(0) });
            kept.extend(blocks);
        }
        let table = shared.tables.block(self.place.start, self.place.len())?;
        {
            let _order = shared.gpu.lock();
            shared.gpu.stream.upload(bytemuck::cast_slice(&cut.table(&members)), &table)?;
        }
        let halt = guarded.map(|_| shared.halt.clone());
        let function = shared.gpu.function(guarded.unwrap_or(kernel))?;
        Ok(BoundStep::Group { function, arguments: [table].into_iter().chain(halt).collect(), kept })
    }
}

/// The time of a launch for each of the nodes that it computes, by the bytes that they move.
pub(super) fn shares<'a>(
    plan: &'a Plan,
    nodes: &'a [NodeId],
    time: Duration,
) -> impl Iterator<Item = (NodeId, Duration)> + 'a {
    let bytes = |node: NodeId| node_cost(&plan.graph, node).bytes.max(1) as f64;
    let all: f64 = nodes.iter().map(|&node| bytes(node)).sum();
    nodes.iter().map(move |&node| (node, time.mul_f64(bytes(node) / all)))
}
