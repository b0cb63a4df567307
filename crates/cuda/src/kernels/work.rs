//! Operations that are several launches, with the scratch memory between them.

use super::for_each;
use crate::kgen::{Kernel, Launch, Launches, Operand, Parameter};
use bessemer_ir::DType;

/// Launches of an operation.
pub(crate) struct Work {
    pub name: &'static str,
    /// The output behind the last one is where an index out of range is reported: [`REPORT_WORDS`](super::index::REPORT_WORDS) words.
    pub launches: Launches,
    /// How many values an index, or a count, may have, for each that is checked.
    pub limits: Vec<usize>,
    outputs: usize,
}

impl Work {
    pub(super) fn new(name: &'static str, outputs: usize) -> Work {
        Work { name, launches: Launches::default(), limits: Vec::new(), outputs }
    }

    /// Memory of this many words of 32 bits.
    pub(super) fn scratch(&mut self, words: usize) -> Operand {
        self.launches.scratch.push(words);
        Operand::Scratch(self.launches.scratch.len() - 1)
    }

    pub(super) fn launch(&mut self, kernel: Kernel, operands: impl Into<Vec<Operand>>) {
        self.launches.launches.push(Launch { kernel, operands: operands.into() });
    }

    /// Sets words of 32 bits.
    pub(super) fn fill(&mut self, to: Operand, words: usize, value: i32) {
        let kernel = for_each("fill", vec![output("y", words)], words, &format!("y[i] = {value};\n"));
        self.launch(kernel, [to]);
    }

    /// Where an index that is not below `limit` is reported.
    pub(super) fn reporting(&mut self, limit: usize) -> Operand {
        self.limits.push(limit);
        Operand::Output(self.outputs)
    }
}

/// Integers that a kernel reads.
pub(super) fn input(name: &str, elements: usize) -> Parameter {
    Parameter::input(name, DType::I32, elements)
}

/// Integers that a kernel writes.
pub(super) fn output(name: &str, elements: usize) -> Parameter {
    Parameter::output(name, DType::I32, elements)
}

/// Constants of a text: numbers without a sign.
pub(super) fn counts(values: &[(&str, usize)]) -> String {
    values.iter().map(|(name, value)| format!("const u32 {name} = {value}u;\n")).collect()
}
