//! Sums over ranks: tensors are packed into a message, which is added in place beside other work, and unpacked.

use super::{Lowered, Place, Step, Unsupported};
use crate::kernels::collective::Message;
use crate::kernels::halt::look_at_ranks;
use bessemer_ir::ops::Op;
use bessemer_ir::ops::collective::Wire;
use bessemer_ir::{DType, Graph, NodeId, TensorType};

/// The message of tensors of these types.
pub(super) fn message<'a>(types: impl Iterator<Item = &'a TensorType>, wire: Wire) -> Message {
    let ty = match wire {
        Wire::F32 => DType::F32,
        Wire::Bf16 => DType::Bf16,
        Wire::F16 => DType::F16,
    };
    Message::new(types.map(|ty| ty.shape.elements()).collect(), ty)
}

/// The type in which the tensors of a start travel.
///
/// # Errors
/// The node is no start.
pub(super) fn wire_of(graph: &Graph, start: NodeId) -> Result<Wire, Unsupported> {
    match &graph.node(start).op {
        Op::AllReduceStart(start) => Ok(start.op.wire),
        _ => Err(Unsupported::NoKernel),
    }
}

/// The node that sends the message which a node starts or waits for.
pub(crate) fn message_of(graph: &Graph, id: NodeId) -> NodeId {
    match &graph.node(id).op {
        Op::AllReduceWait(_) => graph.node(id).inputs[0].node,
        _ => id,
    }
}

impl Lowered {
    pub(super) fn start_sum(&mut self, message: &Message) {
        let at = Place::Message { bytes: message.bytes() };
        let mut first = 0;
        for (kernel, tensors) in message.pack() {
            let operands: Vec<Place> = (first..first + tensors).map(Place::Input).chain([at]).collect();
            self.launch(kernel, operands);
            first += tensors;
        }
        self.steps.push(Step::Exchange { elements: message.elements(), ty: message.ty() });
    }

    pub(super) fn finish_sum(&mut self, message: &Message) {
        let at = Place::Message { bytes: message.bytes() };
        self.steps.push(Step::Await);
        self.launch(look_at_ranks(), [Place::Lost, Place::Halt]);
        let mut first = 0;
        for (kernel, tensors) in message.unpack() {
            let operands: Vec<Place> = (first..first + tensors).map(Place::Output).chain([at]).collect();
            self.launch(kernel, operands);
            first += tensors;
        }
    }
}
