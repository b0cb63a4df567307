//! One launch for fusions of one form: each block finds its fusion, and what of it is its own, in a table. Sums take a second launch, in
//! which a block adds what those of one fusion have.

use super::columns::sums;
use super::fusions::{THREADS, operands};
use super::lanes::Lanes;
use super::totals::{Cut, add_parts, block_of_elements};
use super::{Kernel, KernelError, Operand, Parameter, c_type, indented};
use bessemer_ir::DType;
use bessemer_ir::ops::fusion::Fusion;
use std::fmt::Write;

/// A fusion of a group: addresses of its inputs, then of its outputs, and how many elements each has that has more than one.
pub(crate) struct Member {
    pub addresses: Vec<u64>,
    pub elements: usize,
}

/// The launches of a group of fusions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// In order; each takes the table, and behind it, where there are sums, what blocks have of them.
    pub kernels: Vec<Kernel>,
    /// Sums that blocks have: so many `f32`.
    pub partial: usize,
    cut: Cut,
    /// Words of a fusion in the table: its addresses, its number of elements, its first block.
    words: usize,
    members: usize,
}

/// Words before the first fusion in a table: the numbers of fusions and of blocks.
const HEAD_WORDS: usize = 2;

impl Group {
    /// Bytes of the table.
    pub(crate) fn table_bytes(&self) -> usize {
        8 * (HEAD_WORDS + self.members * self.words)
    }

    /// Byte of the memory of a group at which the sums of blocks begin, behind the table.
    pub(crate) fn sums_at(&self) -> usize {
        self.table_bytes().next_multiple_of(16)
    }

    /// Bytes of all that the launches take.
    pub(crate) fn bytes(&self) -> usize {
        self.sums_at() + DType::F32.size() * self.partial
    }

    /// The table.
    pub(crate) fn table(&self, members: &[Member]) -> Vec<u64> {
        let mut table = vec![members.len() as u64, 0];
        let mut first = 0;
        for Member { addresses, elements } in members {
            table.extend(addresses);
            table.extend([*elements as u64, first]);
            first += self.cut.blocks(*elements) as u64;
        }
        table[1] = first;
        table
    }
}

/// The launches of a group of fusions that compute what `fusion` does for inputs of these types, with so many elements each. Their texts
/// do not depend on how many fusions there are.
///
/// # Errors
/// As [`fusion`](super::fusion).
///
/// # Panics
/// If inputs are read in another way than element by element, or one for all.
pub(crate) fn group(fusion: &Fusion, inputs: &[DType], sizes: &[usize]) -> Result<Group, KernelError> {
    let lanes = Lanes::new(fusion, inputs)?;
    assert!(lanes.width().flat, "fusions of a group have no rows");
    let (parameters, sums, cut) = (lanes.parameters(), sums(&lanes), Cut::of(&lanes));
    let words = inputs.len() + fusion.outputs.len() + 2;
    let all: usize = sizes.iter().map(|&elements| cut.blocks(elements)).sum();
    let mut group = Group { kernels: Vec::new(), partial: all * sums.len(), cut, words, members: sizes.len() };
    let word_of = |operand: &Operand| match *operand {
        Operand::Input(input) => input,
        Operand::Output(output) => inputs.len() + output,
        Operand::Scratch(_) | Operand::Arrivals => unreachable!("fusions without rows take tensors alone"),
    };
    let mut body = format!(
        "const u64* const regions = (const u64*)table + {HEAD_WORDS};\n\
         u32 low = 0, high = (u32)((const u64*)table)[0];\n\
         while (high - low > 1) {{\n    \
         const u32 middle = (low + high) / 2;\n    \
         if ((u32)regions[middle * {words}u + {last}u] <= blockIdx.x) low = middle;\n    \
         else high = middle;\n}}\n\
         const u64* const own = regions + low * {words}u;\n\
         const u32 elements = (u32)own[{before}u], block = blockIdx.x - (u32)own[{last}u];\n",
        last = words - 1,
        before = words - 2,
    );
    let operands = operands(&lanes);
    let mut words_of_memory = operands.iter().map(word_of);
    for parameter in &parameters {
        let _ = match parameter {
            Parameter::Memory { name, ty, written, .. } => {
                let (constant, ty) = (if *written { "" } else { "const " }, c_type(*ty));
                let word = words_of_memory.next().expect("an operand for each memory");
                writeln!(body, "{constant}{ty}* const {name} = ({constant}{ty}*)own[{word}];")
            }
            Parameter::Number { name, value } => writeln!(body, "const u32 {name} = {value}u;"),
        };
    }
    body += &block_of_elements(&lanes, |number| format!("sums[{number}u * (u32)((const u64*)table)[1] + blockIdx.x]"));
    let table = Parameter::input("table", DType::I32, group.table_bytes() / DType::I32.size());
    let threads = [THREADS as u32, 1, 1];
    let partial = (!sums.is_empty()).then(|| Parameter::output("sums", DType::F32, group.partial));
    let parameters = [table.clone()].into_iter().chain(partial).collect();
    let kernel = Kernel::new("group", parameters, [all as u32, 1, 1], threads, &indented(&body));
    group.kernels.push(kernel.named_by_content());
    if !sums.is_empty() {
        let addresses: Vec<usize> = sums.iter().map(|sum| inputs.len() + sum.output).collect();
        group.kernels.push(finish(&group, table, &addresses));
    }
    Ok(group)
}

/// Adds what the blocks of each fusion have of its sums, whose addresses are these words of the fusion in the table.
fn finish(group: &Group, table: Parameter, addresses: &[usize]) -> Kernel {
    let words = group.words;
    let (last, others) = addresses.split_last().expect("a group that adds has sums");
    let others = others.iter().enumerate();
    let address = others
        .rev()
        .fold(format!("{last}u"), |rest, (number, address)| format!("blockIdx.y == {number}u ? {address}u : {rest}"));
    let body = format!(
        "const u64* const head = (const u64*)table;\n\
         const u64* const own = head + {HEAD_WORDS}u + blockIdx.x * {words}u;\n\
         const u32 all = (u32)head[1], first = (u32)own[{last}u];\n\
         const u32 parts = (blockIdx.x + 1 < (u32)head[0] ? (u32)own[{next}u] : all) - first;\n\
         const float* const partial = sums + blockIdx.y * all + first;\n\
         float* const sum = (float*)own[{address}];\n",
        last = words - 1,
        next = 2 * words - 1,
    ) + &add_parts("sum[0]");
    let parameters = vec![table, Parameter::input("sums", DType::F32, group.partial)];
    let blocks = [group.members as u32, addresses.len() as u32, 1];
    Kernel::new("group_totals", parameters, blocks, [THREADS as u32, 1, 1], &indented(&body)).named_by_content()
}
