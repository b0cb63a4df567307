//! One launch for regions of one form: each block finds its region, and what of it is its own, in a table.

use super::fusions::elements;
use super::lanes::{Lanes, Width};
use super::{Kernel, KernelError, Parameter, c_type, indented};
use bessemer_ir::DType;
use bessemer_ir::ops::fusion::Fusion;
use std::fmt::Write;

const THREADS: usize = 256;
/// Vectors of a thread, where there are so many.
const VECTORS: usize = 4;

/// A region of a group: addresses of its inputs, then of its outputs, and how many elements each has that has more than one.
pub(crate) struct Member {
    pub addresses: Vec<u64>,
    pub elements: usize,
}

/// How many regions of a group are cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Elements that a thread computes at once.
    lanes: usize,
    /// Words of a region in the table: its addresses, its number of elements, its first block.
    words: usize,
}

/// Words before the first region in a table: the number of regions.
const HEAD_WORDS: usize = 1;

impl Cut {
    /// Blocks of a region of so many elements.
    fn blocks(self, elements: usize) -> usize {
        (elements / self.lanes).div_ceil(THREADS * VECTORS).max(1)
    }

    /// Bytes of the table of so many regions.
    pub(crate) fn table_bytes(self, members: usize) -> usize {
        8 * (HEAD_WORDS + members * self.words)
    }

    /// The table of a group.
    pub(crate) fn table(self, members: &[Member]) -> Vec<u64> {
        let mut table = vec![members.len() as u64];
        let mut first = 0;
        for Member { addresses, elements } in members {
            table.extend(addresses);
            table.extend([*elements as u64, first]);
            first += self.blocks(*elements) as u64;
        }
        table
    }
}

/// The kernel of a group of regions that compute what `fusion` does for inputs of these types, with so many elements each. It takes
/// the table; its text does not depend on how many regions there are.
///
/// # Errors
/// As [`fusion`](super::fusion).
///
/// # Panics
/// If inputs are read in another way than element by element, or one for all.
pub(crate) fn group(fusion: &Fusion, inputs: &[DType], sizes: &[usize]) -> Result<(Kernel, Cut), KernelError> {
    let lanes = Lanes::new(fusion, inputs)?;
    let width = lanes.width();
    assert!(width.flat, "regions of a group have no rows");
    let own = lanes.parameters();
    let cut = Cut { lanes: width.lanes, words: own.len() + 2 };
    let words = cut.words;
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
    for (index, parameter) in own.iter().enumerate() {
        let Parameter::Memory { name, ty, written, .. } = parameter else { unreachable!("regions take memory") };
        let (constant, ty) = (if *written { "" } else { "const " }, c_type(*ty));
        let _ = writeln!(body, "{constant}{ty}* const {name} = ({constant}{ty}*)own[{index}];");
    }
    let all = THREADS * VECTORS;
    let _ = write!(
        body,
        "const u32 vectors = elements / {0}u, rest = elements % {0}u;\n\
         const u32 begin = block * {all}u, end = begin + {all}u < vectors ? begin + {all}u : vectors;\n\
         for (u32 v = begin + threadIdx.x; v < end; v += {THREADS}u) {{\n",
        width.lanes
    );
    let at = format!("const u32 at = v * {}u;\n", width.lanes);
    body += &indented(&(at + &elements(&lanes, width)));
    body += "}\n";
    if width.lanes > 1 {
        body += "if (block == 0 && threadIdx.x < rest) {\n";
        let at = format!("const u32 at = vectors * {}u + threadIdx.x;\n", width.lanes);
        body += &indented(&(at + &elements(&lanes, Width { lanes: 1, flat: true })));
        body += "}\n";
    }
    let table = Parameter::input("table", DType::I32, cut.table_bytes(sizes.len()) / DType::I32.size());
    let blocks: usize = sizes.iter().map(|&elements| cut.blocks(elements)).sum();
    let kernel = Kernel::new("group", vec![table], [blocks as u32, 1, 1], [THREADS as u32, 1, 1], &indented(&body));
    Ok((kernel.named_by_content(), cut))
}
