//! Tensors packed into one message for a sum over ranks, and unpacked from it.

use super::{THREADS, converted};
use crate::kgen::{Kernel, Parameter, indented};
use bessemer_ir::DType;
use std::fmt::Write;

/// Elements that a thread moves.
const ELEMENTS_OF_A_THREAD: usize = 4;
/// Tensors begin at multiples of so many elements.
const ALIGNMENT: usize = 64;
/// Tensors of one launch: kernels take few parameters.
const TENSORS_OF_A_LAUNCH: usize = 128;

/// How `f32` tensors lie in a message.
pub(crate) struct Message {
    /// Elements of each tensor.
    lens: Vec<usize>,
    /// Type of the message's elements.
    ty: DType,
}

impl Message {
    pub(crate) fn new(lens: Vec<usize>, ty: DType) -> Message {
        Message { lens, ty }
    }

    /// Elements of the message, with those between tensors, which have no meaning.
    pub(crate) fn elements(&self) -> usize {
        self.lens.iter().map(|len| len.next_multiple_of(ALIGNMENT)).sum()
    }

    pub(crate) fn ty(&self) -> DType {
        self.ty
    }

    pub(crate) fn bytes(&self) -> usize {
        self.elements() * self.ty.size()
    }

    /// Kernels that each take some tensors, in order, then the message, which they fill.
    pub(crate) fn pack(&self) -> Vec<(Kernel, usize)> {
        let to = Parameter::output("message", self.ty, self.elements());
        let moved = format!("message[at + i] = {};\n", converted("tensor[i]", DType::F32, self.ty));
        self.launches("pack", false, &to, &moved)
    }

    /// Kernels that each take some tensors, in order, which they fill, then the message.
    pub(crate) fn unpack(&self) -> Vec<(Kernel, usize)> {
        let from = Parameter::input("message", self.ty, self.elements());
        let moved = format!("tensor[i] = {};\n", converted("message[at + i]", self.ty, DType::F32));
        self.launches("unpack", true, &from, &moved)
    }

    /// Kernels with the number of tensors that each takes.
    fn launches(&self, name: &str, written: bool, message: &Parameter, moved: &str) -> Vec<(Kernel, usize)> {
        let mut at = 0;
        let launch = |lens: &[usize]| {
            let kernel = launch(name, lens, at, written, message, moved);
            at += lens.iter().map(|len| len.next_multiple_of(ALIGNMENT)).sum::<usize>();
            (kernel, lens.len())
        };
        self.lens.chunks(TENSORS_OF_A_LAUNCH).map(launch).collect()
    }
}

/// One kernel for tensors of these lengths, the first of which lies at element `at` of the message. A block finds its tensor by
/// its number.
fn launch(name: &str, lens: &[usize], mut at: usize, written: bool, message: &Parameter, moved: &str) -> Kernel {
    let of_block = THREADS * ELEMENTS_OF_A_THREAD;
    let (mut parameters, mut first) = (Vec::new(), 0);
    let mut text = format!("{}float* tensor;\nu32 n, first, at;\n", if written { "" } else { "const " });
    for (number, &len) in lens.iter().enumerate() {
        let tensor = format!("t{number}");
        let end = first + len.div_ceil(of_block);
        let is_last = number + 1 == lens.len();
        let head = if is_last { "{".to_owned() } else { format!("if (blockIdx.x < {end}u) {{") };
        let tail = if is_last { "}\n" } else { "} else " };
        let _ = write!(text, "{head} tensor = {tensor}; n = {len}u; first = {first}u; at = {at}u; {tail}");
        parameters.push(match written {
            true => Parameter::output(tensor, DType::F32, len),
            false => Parameter::input(tensor, DType::F32, len),
        });
        (first, at) = (end, at + len.next_multiple_of(ALIGNMENT));
    }
    parameters.push(message.clone());
    let _ = write!(
        text,
        "const u32 begin = (blockIdx.x - first) * {of_block}u + threadIdx.x;\n\
         for (u32 i = begin; i < n && i < begin + {of_block}u; i += {THREADS}u) {moved}"
    );
    Kernel::new(name, parameters, [first.max(1) as u32, 1, 1], [THREADS as u32, 1, 1], &indented(&text))
        .named_by_content()
}
