//! Huffman tables that are looked up by the next bits of the data.

use super::header::HuffmanSpec;

/// Bits by which a table is looked up.
const LOOKAHEAD: u32 = 10;
/// Longest code in bits.
const MAX_LENGTH: u32 = 16;

/// A code and the number behind it: what a symbol says of coefficients.
///
/// Bits 0 to 7 are the bits of both together, bits 8 to 15 those of the code, bits 16 to 23 those of the number, and bits 24 to 31 how many
/// coefficients are zero before it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Entry(u32);

impl Entry {
    /// Longest code with the longest number behind it, in bits.
    pub(super) const MAX_LENGTH: u32 = MAX_LENGTH + 15;
    /// Zeros of a symbol that ends a block: more than a block holds, with any run before it.
    pub(super) const END: usize = 80;

    fn new(symbol: u8, length: u32, is_ac: bool) -> Self {
        let (zeros, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        // Fifteen zeros and a number of no bits, which is zero, are the sixteen zeros of F0. Other runs without a number end a block.
        let is_end = is_ac && size == 0 && zeros < 15;
        let zeros = if is_end { Self::END as u32 } else { zeros };
        Self(zeros << 24 | size << 16 | length << 8 | (length + size))
    }

    /// Whether these bits are a part of a longer code.
    #[inline(always)]
    fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Bits of the code and the number.
    #[inline(always)]
    pub(super) fn length(self) -> u32 {
        self.0 & 0xff
    }

    fn code_length(self) -> u32 {
        self.0 >> 8 & 0xff
    }

    /// Zeros before the number.
    #[inline(always)]
    pub(super) fn zeros(self) -> usize {
        (self.0 >> 24) as usize
    }

    /// The number, if `bits` begin with the code (ITU-T T.81, F.2.2.1).
    #[inline(always)]
    pub(super) fn number(self, bits: u64) -> i32 {
        let size = self.0 >> 16 & 15;
        let rest = bits << (self.0 >> 8 & 63);
        let number = (rest >> 1 >> (63 - size)) as i32;
        // Numbers that begin with 0 are negative.
        let is_positive = (rest as i64 >> 63) as i32;
        number + (!is_positive & (1 - (1 << size)))
    }
}

/// A table for decoding.
pub(super) struct Table {
    entries: [Entry; 1 << LOOKAHEAD],
    /// The first 16 bits of the data are below this for codes of this length or less.
    limits: [u32; MAX_LENGTH as usize + 1],
    /// Added to a code of this length to find its symbol.
    offsets: [i32; MAX_LENGTH as usize + 1],
    symbols: [u8; 256],
    counts: [u8; MAX_LENGTH as usize],
    is_ac: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            entries: [Entry::default(); _],
            limits: [0; _],
            offsets: [0; _],
            symbols: [0; _],
            counts: [0; _],
            is_ac: false,
        }
    }
}

impl Table {
    /// Fills the table; the codes were found to be prefix codes.
    /// Returns whether it holds others than before.
    pub(super) fn fill(&mut self, spec: &HuffmanSpec<'_>, is_ac: bool) -> bool {
        if self.is_ac == is_ac && self.counts == *spec.counts && self.symbols[..spec.symbols.len()] == *spec.symbols {
            return false;
        }
        (self.is_ac, self.counts) = (is_ac, *spec.counts);
        self.entries.fill(Entry::default());
        self.symbols[..spec.symbols.len()].copy_from_slice(spec.symbols);
        let (mut code, mut first) = (0u32, 0usize);
        for (length, &count) in (1..).zip(spec.counts) {
            self.offsets[length as usize] = first as i32 - code as i32;
            for &symbol in &spec.symbols[first..first + usize::from(count)] {
                if length <= LOOKAHEAD {
                    let free = LOOKAHEAD - length;
                    self.entries[(code << free) as usize..][..1 << free].fill(Entry::new(symbol, length, is_ac));
                }
                code += 1;
            }
            first += usize::from(count);
            self.limits[length as usize] = code << (MAX_LENGTH - length);
            code <<= 1;
        }
        true
    }

    /// What the data begins with, whose next bits are the uppermost of `bits`; `None` if there is no such code.
    #[inline(always)]
    pub(super) fn look_up(&self, bits: u64) -> Option<Entry> {
        let entry = self.entries[(bits >> (64 - LOOKAHEAD)) as usize];
        if entry.is_none() { self.find_long(bits) } else { Some(entry) }
    }

    /// A code that is longer than the look-up.
    #[cold]
    #[inline(never)]
    fn find_long(&self, bits: u64) -> Option<Entry> {
        let bits = (bits >> (64 - MAX_LENGTH)) as u32;
        let length = (LOOKAHEAD + 1..=MAX_LENGTH).find(|&length| bits < self.limits[length as usize])?;
        let code = (bits >> (MAX_LENGTH - length)) as i32;
        let symbol = self.symbols.get((code + self.offsets[length as usize]) as usize)?;
        Some(Entry::new(*symbol, length, self.is_ac))
    }
}

/// What the next bits mean for AC coefficients that nobody wants: all symbols whose codes are among them, passed at once.
///
/// Bits 0 to 7 are the bits of the symbols and their numbers, bits 8 to 15 the coefficients that they are, and the block must not be
/// over before the last symbol: bits 16 to 23 are 64 less the coefficients before that one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Run(u32);

impl Run {
    /// Bits of the symbols and their numbers.
    #[inline(always)]
    pub(super) fn length(self) -> u32 {
        self.0 & 0xff
    }

    /// Coefficients that are passed.
    #[inline(always)]
    pub(super) fn coefficients(self) -> usize {
        (self.0 >> 8 & 0xff) as usize
    }

    /// The symbols are those of one block if the first coefficient has an index below this; 0 if there are no symbols.
    #[inline(always)]
    pub(super) fn limit(self) -> usize {
        (self.0 >> 16) as usize
    }
}

/// Runs by the next bits of the data.
pub(super) struct Runs([Run; 1 << LOOKAHEAD]);

impl Default for Runs {
    fn default() -> Self {
        Self([Run::default(); _])
    }
}

impl Runs {
    /// Fills the table from one for AC coefficients.
    pub(super) fn fill(&mut self, table: &Table) {
        const COUNT: usize = 1 << LOOKAHEAD;
        for (index, run) in self.0.iter_mut().enumerate() {
            let (mut length, mut coefficients, mut limit) = (0, 0, 0);
            while length < LOOKAHEAD && coefficients < 64 {
                let entry = table.entries[(index << length) % COUNT];
                if entry.is_none() || length + entry.code_length() > LOOKAHEAD {
                    break;
                }
                limit = 64 - coefficients;
                coefficients += entry.zeros() + 1;
                length += entry.length();
            }
            *run = Run((limit << 16 | coefficients << 8) as u32 | length);
        }
    }

    /// The symbols that the data begins with, whose next bits are the uppermost of `bits`.
    #[inline(always)]
    pub(super) fn look_up(&self, bits: u64) -> Run {
        self.0[(bits >> (64 - LOOKAHEAD)) as usize]
    }
}
