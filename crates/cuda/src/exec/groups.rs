//! Fusions that are launched together: their tables in the device's memory.

use super::bound::{BoundStep, Shared};
use crate::driver::Block;
use crate::error::GpuError;
use crate::kgen::{Group, Kernel, Member};
use crate::lower::{Joint, Together};
use bessemer_ir::NodeId;
use bessemer_ir::plan::{Plan, node_cost};
use std::ops::Range;
use std::time::Duration;

/// Bytes to which tables are aligned.
const ALIGNMENT: usize = 256;

/// Fusions that are launched together, with the place of their table, if they have one, among those of the plan.
pub(super) struct Placed {
    together: Together,
    place: Range<usize>,
}

impl Placed {
    /// Behind the `end` bytes of other tables.
    pub(super) fn new(together: Together, end: &mut usize) -> Placed {
        let first = end.next_multiple_of(ALIGNMENT);
        *end = first + together.bytes();
        Placed { together, place: first..*end }
    }

    pub(super) fn kernels(&self) -> &[Kernel] {
        self.together.kernels()
    }

    /// The launches. `guarded` are their kernels that take the halt, where they are to.
    ///
    /// # Errors
    /// The driver refuses.
    pub(super) fn bind(&self, shared: &Shared<'_>, guarded: Option<&[Kernel]>) -> Result<Vec<BoundStep>, GpuError> {
        let halt = || guarded.map(|_| shared.halt.clone());
        let kernels = guarded.unwrap_or(self.kernels());
        let operands = &self.together.operands;
        let block = |&value: &_| shared.memory.value(shared.plan, value);
        match &self.together.form {
            Joint::Program(_) => {
                let blocks = operands.iter().flatten().map(block).collect::<Result<Vec<Block>, GpuError>>()?;
                let launch = |kernel| shared.launch(kernel, blocks.iter().cloned().chain(halt()).collect());
                kernels.iter().map(launch).collect()
            }
            Joint::Group(group) => {
                let mut kept = Vec::new();
                let mut members = Vec::new();
                for values in operands {
                    let elements = values.iter().map(|&value| shared.plan.graph.ty(value).shape.elements()).max();
                    let blocks = values.iter().map(block).collect::<Result<Vec<Block>, GpuError>>()?;
                    let addresses = blocks.iter().map(Block::address).collect();
                    members.push(Member { addresses, elements: elements.unwrap_or(0) });
                    kept.extend(blocks);
                }
                let memory = self.table(shared, group, &members)?;
                let launch = |kernel| {
                    let function = shared.gpu.function(kernel)?;
                    let arguments = memory.iter().cloned().chain(halt()).collect();
                    Ok(BoundStep::Group { function, arguments, kept: kept.clone() })
                };
                kernels.iter().map(launch).collect()
            }
        }
    }

    /// Fills in the table. Returns it and, where there are sums, the memory of what blocks have of them.
    fn table(&self, shared: &Shared<'_>, group: &Group, members: &[Member]) -> Result<Vec<Block>, GpuError> {
        let table = shared.tables.block(self.place.start, group.table_bytes())?;
        {
            let _order = shared.gpu.lock();
            shared.gpu.stream.upload(bytemuck::cast_slice(&group.table(members)), &table)?;
        }
        let sums = (group.partial > 0)
            .then(|| shared.tables.block(self.place.start + group.sums_at(), group.bytes() - group.sums_at()));
        Ok([table].into_iter().chain(sums.transpose()?).collect())
    }
}

/// The time of launches for each of the nodes that they compute, by the bytes that they move.
pub(super) fn shares<'a>(
    plan: &'a Plan,
    nodes: &'a [NodeId],
    time: Duration,
) -> impl Iterator<Item = (NodeId, Duration)> + 'a {
    let bytes = |node: NodeId| node_cost(&plan.graph, node).bytes.max(1) as f64;
    let all: f64 = nodes.iter().map(|&node| bytes(node)).sum();
    nodes.iter().map(move |&node| (node, time.mul_f64(bytes(node) / all)))
}
