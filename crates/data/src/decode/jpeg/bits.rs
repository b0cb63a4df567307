//! Entropy-coded data: stuffed bytes, restart markers, and reading bit by bit.

/// Zeros behind the data, so that words can be read at its end.
const PADDING: usize = 8;
const END_OF_IMAGE: u8 = 0xd9;
const RESTARTS: [u8; 8] = [0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7];

/// Entropy-coded data without stuffed bytes and markers.
#[derive(Default)]
pub(super) struct Segments {
    /// Data of all segments, then zeros.
    data: Vec<u8>,
    /// Where each segment ends in `data`.
    ends: Vec<usize>,
    is_ended: bool,
}

impl Segments {
    /// Takes the data of `scan` up to the first marker, or the first other than the expected restart marker.
    pub(super) fn read(&mut self, scan: &[u8], has_restarts: bool) {
        let Self { data, ends, is_ended } = self;
        ends.clear();
        // Each step writes a whole word.
        if data.len() < scan.len() + PADDING {
            data.resize(scan.len() + PADDING, 0);
        }
        let (mut from, mut to) = (0, 0);
        let marker = loop {
            if let Some(word) = scan[from..].first_chunk::<8>() {
                data[to..to + 8].copy_from_slice(word);
                let count = bytes_before_marker(u64::from_le_bytes(*word));
                (from, to) = (from + count, to + count);
                if count == 8 {
                    continue;
                }
            }
            match scan[from..] {
                [0xff, 0, ..] => {
                    data[to] = 0xff;
                    (from, to) = (from + 2, to + 1);
                }
                [0xff, marker, ..] if has_restarts && marker == RESTARTS[ends.len() % RESTARTS.len()] => {
                    ends.push(to);
                    from += 2;
                }
                [0xff, marker, ..] => break Some(marker),
                [0xff] | [] => break None,
                [byte, ..] => {
                    data[to] = byte;
                    (from, to) = (from + 1, to + 1);
                }
            }
        };
        ends.push(to);
        *is_ended = marker == Some(END_OF_IMAGE);
        data[to..to + PADDING].fill(0);
        data.truncate(to + PADDING);
    }

    /// Number of segments, at least 1.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the image ends behind the last segment.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// A reader of segment `index`, and the number of bits in it.
    pub(super) fn reader(&self, index: usize) -> (Reader<'_>, usize) {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        let data = &self.data[start..];
        (Reader { data, position: 0, bits: 0, count: 0 }, (self.ends[index] - start) * 8)
    }
}

/// Bytes before the first 0xff of a little-endian word.
#[inline(always)]
fn bytes_before_marker(word: u64) -> usize {
    let inverse = !word;
    let zeros = inverse.wrapping_sub(0x0101_0101_0101_0101) & !inverse & 0x8080_8080_8080_8080;
    (zeros.trailing_zeros() / 8) as usize
}

/// Reads bits, the uppermost of a byte first. Behind its end there are bits of no meaning.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    data: &'a [u8],
    position: usize,
    /// The next bits, uppermost first.
    bits: u64,
    /// How many of `bits` were read from `data`.
    count: u32,
}

impl Reader<'_> {
    /// Provides at least 56 bits.
    #[inline(always)]
    pub(super) fn refill(&mut self) {
        let word = self.data.get(self.position..).and_then(|rest| rest.first_chunk());
        // The bits of a byte that is not counted yet are read again, and are the same.
        self.bits |= word.map_or(0, |&word| u64::from_be_bytes(word)) >> self.count;
        let bytes = (63 - self.count) / 8;
        self.position += bytes as usize;
        self.count += bytes * 8;
    }

    /// Bits that can be read without a refill.
    #[inline(always)]
    pub(super) fn available(&self) -> u32 {
        self.count
    }

    /// The next bits in the uppermost places.
    #[inline(always)]
    pub(super) fn peek(&self) -> u64 {
        self.bits
    }

    /// Skips up to 31 bits, which are available.
    #[inline(always)]
    pub(super) fn skip(&mut self, count: u32) {
        self.bits <<= count & 63;
        self.count -= count;
    }

    /// Bits that were read since the start.
    pub(super) fn bits_read(&self) -> usize {
        self.position * 8 - self.count as usize
    }
}
