//! Coefficients of a block, read or passed over.

use super::bits::Reader;
use super::huffman::{Entry, Runs, Table};

/// Coefficients `[row, column]` of a block of 8 x 8, times their divisors.
pub(super) type Coefficients = [i32; 64];

/// Where the coefficients of the zigzag order belong. What is beyond the last one belongs there as well: the zero of the end of a block, and
/// runs of damaged data.
static ZIGZAG: [u8; 256] = zigzag();

const fn zigzag() -> [u8; 256] {
    let mut order = [63; 256];
    let (mut row, mut column) = (0usize, 0usize);
    let mut index = 0;
    while index < 64 {
        order[index] = (row * 8 + column) as u8;
        let is_rising = (row + column) % 2 == 0;
        match (is_rising, row, column) {
            (true, _, 7) => row += 1,
            (true, 0, _) => column += 1,
            (true, _, _) => (row, column) = (row - 1, column + 1),
            (false, 7, _) => column += 1,
            (false, _, 0) => row += 1,
            (false, _, _) => (row, column) = (row + 1, column - 1),
        }
        index += 1;
    }
    order
}

/// The tables of a component.
pub(super) struct Tables {
    pub(super) dc: Table,
    pub(super) ac: Table,
    pub(super) runs: Runs,
    /// Divisors in zigzag order.
    pub(super) divisors: [i32; 64],
}

impl Default for Tables {
    fn default() -> Self {
        Self { dc: Table::default(), ac: Table::default(), runs: Runs::default(), divisors: [0; _] }
    }
}

/// A code that does not exist, or coefficients beyond the last.
pub(super) struct Damaged;

/// Reads the difference of a DC coefficient to the one before.
#[inline(always)]
fn read_dc(reader: &mut Reader<'_>, table: &Table) -> Result<i32, Damaged> {
    reader.refill();
    let bits = reader.peek();
    let entry = table.look_up(bits).ok_or(Damaged)?;
    reader.skip(entry.length());
    Ok(entry.number(bits))
}

/// Symbols that are read after each refill, if there are bits for them.
const SYMBOLS_OF_REFILL: usize = 3;

/// Whether a block that ended at this index of the zigzag order ended as it must.
#[inline(always)]
fn check_end(index: usize) -> Result<(), Damaged> {
    if index > 64 && index < Entry::END { Err(Damaged) } else { Ok(()) }
}

/// Reads a block into `block`, which holds zeros; `dc` is the DC coefficient of the block before, without its divisor, and becomes that of
/// this one. Returns whether there are other coefficients.
#[inline(always)]
pub(super) fn read_block(
    reader: &mut Reader<'_>,
    tables: &Tables,
    dc: &mut i32,
    block: &mut Coefficients,
) -> Result<bool, Damaged> {
    let mut bits = *reader;
    *dc = dc.wrapping_add(read_dc(&mut bits, &tables.dc)?);
    block[0] = dc.wrapping_mul(tables.divisors[0]);
    let mut index = 1;
    'block: while index < 64 {
        bits.refill();
        for _ in 0..SYMBOLS_OF_REFILL {
            if bits.available() < Entry::MAX_LENGTH {
                break;
            }
            let next = bits.peek();
            let entry = tables.ac.look_up(next).ok_or(Damaged)?;
            bits.skip(entry.length());
            index += entry.zeros();
            let place = usize::from(ZIGZAG[index & 255]) & 63;
            block[place] = entry.number(next).wrapping_mul(tables.divisors[index & 63]);
            index += 1;
            if index >= 64 {
                break 'block;
            }
        }
    }
    *reader = bits;
    check_end(index)?;
    Ok(index != 1 + Entry::END + 1)
}

/// Passes over a block; `dc` as for [`read_block`].
#[inline(always)]
pub(super) fn pass_block(reader: &mut Reader<'_>, tables: &Tables, dc: &mut i32) -> Result<(), Damaged> {
    let mut bits = *reader;
    *dc = dc.wrapping_add(read_dc(&mut bits, &tables.dc)?);
    let mut index = 1;
    'block: while index < 64 {
        bits.refill();
        for _ in 0..SYMBOLS_OF_REFILL {
            if bits.available() < Entry::MAX_LENGTH {
                break;
            }
            let next = bits.peek();
            let run = tables.runs.look_up(next);
            let (length, coefficients) = if index < run.limit() {
                (run.length(), run.coefficients())
            } else {
                let entry = tables.ac.look_up(next).ok_or(Damaged)?;
                (entry.length(), entry.zeros() + 1)
            };
            bits.skip(length);
            index += coefficients;
            if index >= 64 {
                break 'block;
            }
        }
    }
    *reader = bits;
    check_end(index)
}
