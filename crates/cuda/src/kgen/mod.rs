//! Text of kernels in CUDA C++, without any header, and what they are launched with.

mod adamw;
mod columns;
mod fusions;
mod groups;
mod lanes;
mod parts;
mod prelude;
mod programs;
mod rows;
mod totals;

pub(crate) use adamw::{AdamW, STEP_NUMBERS, Segment};
pub use fusions::{Launch, Launches, Operand, fusion};
pub(crate) use groups::{Group, Member, group};
pub(crate) use lanes::{constant, kind_name};
pub(crate) use parts::MOST_ARRIVALS;
pub(crate) use programs::{Scalar, program};

use bessemer_ir::DType;
use std::hash::{DefaultHasher, Hash, Hasher};
use thiserror::Error;

/// What a kernel takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// At least this many elements of the device's memory, aligned to 16 bytes.
    Memory {
        /// Name in the text of the kernel.
        name: String,
        /// Element type.
        ty: DType,
        /// Least number of elements that the memory must have.
        elements: usize,
        /// Whether the kernel writes to it.
        written: bool,
    },
    /// A number of 32 bits without a sign, which is given at each launch: kernels that differ by it alone have one text.
    Number {
        /// Name in the text of the kernel.
        name: String,
        /// The number.
        value: u32,
    },
}

/// A kernel that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no kernel for this fusion: {0}")]
pub struct KernelError(pub String);

/// The text of a kernel, and how it is launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Name of the function in the text and in the compiled module.
    pub name: String,
    /// Parameters of the function, in order.
    pub parameters: Vec<Parameter>,
    /// Size of the grid: blocks along x, y and z.
    pub blocks: [u32; 3],
    /// Size of a block: threads along x, y and z.
    pub threads: [u32; 3],
    /// All of the text, ready to be compiled.
    pub text: String,
}

impl Parameter {
    /// Memory that the kernel only reads.
    pub fn input(name: impl Into<String>, ty: DType, elements: usize) -> Parameter {
        Parameter::Memory { name: name.into(), ty, elements, written: false }
    }

    /// Memory that the kernel writes.
    pub fn output(name: impl Into<String>, ty: DType, elements: usize) -> Parameter {
        Parameter::Memory { name: name.into(), ty, elements, written: true }
    }

    /// Name in the text of the kernel.
    pub fn name(&self) -> &str {
        match self {
            Parameter::Memory { name, .. } | Parameter::Number { name, .. } => name,
        }
    }

    /// The same by another name.
    pub(crate) fn named(mut self, other: String) -> Parameter {
        let (Parameter::Memory { name, .. } | Parameter::Number { name, .. }) = &mut self;
        *name = other;
        self
    }

    /// As it stands in the kernel's head.
    fn declaration(&self) -> String {
        match self {
            Parameter::Memory { name, ty, written: false, .. } => format!("const {}* {name}", c_type(*ty)),
            Parameter::Memory { name, ty, written: true, .. } => format!("{}* {name}", c_type(*ty)),
            Parameter::Number { name, .. } => format!("u32 {name}"),
        }
    }
}

/// Name of the type in kernels.
pub(crate) fn c_type(ty: DType) -> &'static str {
    match ty {
        DType::F32 => "float",
        DType::Bf16 => "bf16",
        DType::F16 => "f16",
        DType::I32 => "int",
        DType::U8 => "u8",
        DType::Bool => "boolean",
    }
}

impl Kernel {
    /// A kernel with `body` between its braces.
    pub fn new(name: &str, parameters: Vec<Parameter>, blocks: [u32; 3], threads: [u32; 3], body: &str) -> Kernel {
        let declared: Vec<String> = parameters.iter().map(Parameter::declaration).collect();
        let bound: u32 = threads.iter().product();
        let text = format!(
            "{}\nextern \"C\" __global__ void __launch_bounds__({bound}) {name}({}) {{\n{body}}}\n",
            prelude::TEXT,
            declared.join(", ")
        );
        Kernel { name: name.to_owned(), parameters, blocks, threads, text }
    }

    /// The same kernel, whose threads take no more registers than leave room for so many blocks on a multiprocessor.
    pub(crate) fn beside(self, blocks: u32) -> Kernel {
        let bound: u32 = self.threads.iter().product();
        let (alone, beside) = (format!("__launch_bounds__({bound})"), format!("__launch_bounds__({bound}, {blocks})"));
        let own = self.own_text().replacen(&alone, &beside, 1);
        Kernel { text: format!("{}{own}", prelude::TEXT), ..self }
    }

    /// The text without what every kernel's begins with.
    fn own_text(&self) -> &str {
        &self.text[prelude::TEXT.len()..]
    }

    /// The same kernel, which does nothing while the first `i32` of the memory that it takes last is not 0.
    pub(crate) fn unless_halted(&self) -> Kernel {
        let head = ") {\n";
        let own = self.own_text().replacen(head, ", const int* halt) {\n    if (*halt != 0) return;\n", 1);
        let mut parameters = self.parameters.clone();
        parameters.push(Parameter::input("halt", DType::I32, 1));
        Kernel { text: format!("{}{own}", prelude::TEXT), parameters, ..self.clone() }.named_by_content()
    }

    /// The same kernel, whose name tells it from all kernels of another text.
    pub(crate) fn named_by_content(self) -> Kernel {
        let mut hasher = DefaultHasher::new();
        self.own_text().hash(&mut hasher);
        let name = format!("{}_{:016x}", self.name, hasher.finish());
        let own = self.own_text().replacen(&format!(" {}(", self.name), &format!(" {name}("), 1);
        Kernel { text: format!("{}{own}", prelude::TEXT), name, ..self }
    }
}

/// One text of several kernels, whose names differ.
pub fn text_of<'a>(kernels: impl IntoIterator<Item = &'a Kernel>) -> String {
    kernels.into_iter().fold(prelude::TEXT.to_owned(), |text, kernel| text + kernel.own_text())
}

/// Every line four blanks further in.
pub(crate) fn indented(text: &str) -> String {
    text.lines().map(|line| if line.starts_with('#') { format!("{line}\n") } else { format!("    {line}\n") }).collect()
}
