//! All-reduce over messages, with the same bits on every rank, whatever the transport and the order of messages.
//!
//! The elements are cut into one chunk a rank. Rank `j` receives chunk `j` of all others, combines them in the order of ranks in
//! `f32`, and sends the result to all. Each rank sends `2 (N - 1) / N` of the bytes, as in a ring, in `2 (N - 1)` messages.

use crate::CommError;
use crate::transport::{Operation, Request, Step, Transport, settle, tag};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::ops::Range;
use std::sync::Arc;

/// Chunks are multiples of this many elements, but for the last.
pub const CHUNK_ALIGNMENT: usize = 64;

/// Element type of messages. With 16 bits, elements are rounded to nearest even before they are sent, and their sum once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Nothing is rounded.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision; larger elements become infinite.
    F16,
}

/// How the elements of all ranks are combined, in the order of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Sum in `f32`, from +0: a sum of zeros is +0, whatever their signs.
    Sum,
    /// Largest element, the first among equals; NaN if one is NaN.
    Max,
}

/// The part of `length` elements that each of `ranks` ranks reduces: equal multiples of 64, the last ones shorter or empty.
pub fn chunks(length: usize, ranks: usize) -> Vec<Range<usize>> {
    let chunk = length.div_ceil(ranks).next_multiple_of(CHUNK_ALIGNMENT);
    (0..ranks).map(|rank| (rank * chunk).min(length)..((rank + 1) * chunk).min(length)).collect()
}

/// An all-reduce that owns its messages: the elements are read when it is made, and written when it is finished.
pub struct AllReduce {
    wire: Wire,
    reduction: Reduction,
    rank: usize,
    chunks: Vec<Range<usize>>,
    /// Chunks on the wire by rank: those to send, or, on their own rank's place, what this rank contributes to its own.
    outgoing: Vec<Arc<Vec<u8>>>,
    /// Own chunk of all ranks, by rank, until all have come.
    contributions: Vec<Vec<u8>>,
    reduced_own: bool,
    /// Reduced chunks on the wire, by rank.
    reduced: Vec<Arc<Vec<u8>>>,
    sends: Vec<((), Request)>,
    contributions_awaited: Vec<(usize, Request)>,
    reduced_awaited: Vec<(usize, Request)>,
    tag: u16,
}

impl AllReduce {
    /// Takes over the elements of this rank, which are those of the tensors one behind the other. Every rank gives tensors of the
    /// same lengths.
    pub fn new(tensors: &[&[f32]], wire: Wire, reduction: Reduction, rank: usize, ranks: usize) -> AllReduce {
        let chunks = chunks(tensors.iter().map(|tensor| tensor.len()).sum(), ranks);
        let encoded = |chunk: &Range<usize>| {
            let mut bytes = Vec::with_capacity(chunk.len() * wire.bytes());
            for (tensor, range) in pieces(tensors.iter().map(|tensor| tensor.len()), chunk.clone()) {
                encode(wire, &tensors[tensor][range], &mut bytes);
            }
            Arc::new(bytes)
        };
        AllReduce {
            wire,
            reduction,
            rank,
            outgoing: chunks.iter().map(encoded).collect(),
            contributions: vec![Vec::new(); ranks],
            reduced_own: false,
            reduced: vec![Arc::default(); ranks],
            sends: Vec::new(),
            contributions_awaited: Vec::new(),
            reduced_awaited: Vec::new(),
            tag: 0,
            chunks,
        }
    }

    /// Writes the result.
    ///
    /// # Panics
    /// If it is not done, or the tensors have other lengths than those it was made of.
    pub fn finish(&self, tensors: &mut [&mut [f32]]) {
        let lengths: Vec<usize> = tensors.iter().map(|tensor| tensor.len()).collect();
        let (length, given) = (self.chunks.last().map_or(0, |chunk| chunk.end), lengths.iter().sum::<usize>());
        assert!(given == length, "{given} elements for the result of {length}");
        for (chunk, mut bytes) in self.chunks.iter().zip(self.reduced.iter().map(|bytes| bytes.as_slice())) {
            assert!(bytes.len() == chunk.len() * self.wire.bytes(), "an all-reduce is finished before it is done");
            for (tensor, range) in pieces(lengths.iter().copied(), chunk.clone()) {
                let (piece, rest) = bytes.split_at(range.len() * self.wire.bytes());
                decode(self.wire, piece, &mut tensors[tensor][range]);
                bytes = rest;
            }
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, ranks) = (self.rank, self.chunks.len());
        // Each rank begins with its neighbour, so that not all send to the same one first.
        (1..ranks).map(move |distance| (rank + distance) % ranks)
    }

    /// Combines the own chunk of all ranks and sends it to the others.
    fn reduce_own(&mut self, transport: &mut dyn Transport) -> Result<(), CommError> {
        self.contributions[self.rank] = Arc::unwrap_or_clone(std::mem::take(&mut self.outgoing[self.rank]));
        let mut result = match self.reduction {
            Reduction::Sum => vec![0.0; self.chunks[self.rank].len()],
            Reduction::Max => vec![f32::NEG_INFINITY; self.chunks[self.rank].len()],
        };
        let mut elements = vec![0.0; result.len()];
        for contribution in &mut self.contributions {
            decode(self.wire, &std::mem::take(contribution), &mut elements);
            combine(self.reduction, &mut result, &elements);
        }
        let mut bytes = Vec::with_capacity(result.len() * self.wire.bytes());
        encode(self.wire, &result, &mut bytes);
        let bytes = Arc::new(bytes);
        if !bytes.is_empty() {
            for other in self.others() {
                self.sends.push(((), transport.send(other, self.tag + 1, bytes.clone())?));
            }
        }
        self.reduced[self.rank] = bytes;
        self.reduced_own = true;
        Ok(())
    }
}

impl Operation for AllReduce {
    fn post(&mut self, transport: &mut dyn Transport, sequence: u32) -> Result<(), CommError> {
        self.tag = tag(sequence, 0);
        let own = self.chunks[self.rank].len() * self.wire.bytes();
        for other in self.others() {
            if own > 0 {
                self.contributions_awaited.push((other, transport.receive(other, self.tag, own)?));
            }
            let theirs = self.chunks[other].len() * self.wire.bytes();
            if theirs > 0 {
                self.reduced_awaited.push((other, transport.receive(other, self.tag + 1, theirs)?));
            }
        }
        for other in self.others() {
            let bytes = std::mem::take(&mut self.outgoing[other]);
            if !bytes.is_empty() {
                self.sends.push(((), transport.send(other, self.tag, bytes)?));
            }
        }
        Ok(())
    }

    fn poll(&mut self, transport: &mut dyn Transport) -> Result<Step, CommError> {
        let (contributions, reduced) = (&mut self.contributions, &mut self.reduced);
        let mut advanced =
            settle(&mut self.contributions_awaited, transport, |from, bytes| contributions[from] = bytes)?;
        advanced |= settle(&mut self.reduced_awaited, transport, |from, bytes| reduced[from] = Arc::new(bytes))?;
        if self.contributions_awaited.is_empty() && !self.reduced_own {
            self.reduce_own(transport)?;
        }
        advanced |= settle(&mut self.sends, transport, |(), _| ())?;
        let done = self.reduced_own && self.reduced_awaited.is_empty() && self.sends.is_empty();
        Ok(Step::of(done, advanced))
    }
}

impl Wire {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Wire::F32 => 4,
            Wire::Bf16 | Wire::F16 => 2,
        }
    }
}

fn combine(reduction: Reduction, result: &mut [f32], elements: &[f32]) {
    for (result, &element) in result.iter_mut().zip(elements) {
        match reduction {
            Reduction::Sum => *result += element,
            Reduction::Max if element > *result || element.is_nan() => *result = element,
            Reduction::Max => {}
        }
    }
}

/// Elements as bytes, the lowest first.
/// The parts of tensors of these lengths, one behind the other, that lie in a range of all elements: number of the tensor, and
/// range of its elements.
fn pieces(lengths: impl Iterator<Item = usize>, range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut end = 0;
    let part = move |(tensor, length): (usize, usize)| {
        let start = end;
        end += length;
        let inside = range.start.max(start)..range.end.min(end);
        (inside.start < inside.end).then(|| (tensor, inside.start - start..inside.end - start))
    };
    lengths.enumerate().filter_map(part)
}

/// Appends elements as they travel.
fn encode(wire: Wire, elements: &[f32], bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.resize(start + elements.len() * wire.bytes(), 0);
    let words = bytes[start..].chunks_exact_mut(wire.bytes());
    match wire {
        Wire::F32 => {
            words.zip(elements).for_each(|(word, element)| word.copy_from_slice(&element.to_le_bytes()));
        }
        Wire::Bf16 => {
            let rounded = elements.iter().map(|&element| bf16::from_f32(element));
            words.zip(rounded).for_each(|(word, element)| word.copy_from_slice(&element.to_le_bytes()));
        }
        Wire::F16 => {
            let mut rounded = vec![f16::ZERO; elements.len()];
            rounded.convert_from_f32_slice(elements);
            words.zip(rounded).for_each(|(word, element)| word.copy_from_slice(&element.to_le_bytes()));
        }
    }
}

fn decode(wire: Wire, bytes: &[u8], elements: &mut [f32]) {
    let words = || bytes.chunks_exact(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    match wire {
        Wire::F32 => {
            for (element, bytes) in elements.iter_mut().zip(bytes.chunks_exact(4)) {
                *element = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
        Wire::Bf16 => {
            for (element, word) in elements.iter_mut().zip(words()) {
                *element = bf16::from_bits(word).to_f32();
            }
        }
        Wire::F16 => {
            let rounded: Vec<f16> = words().map(f16::from_bits).collect();
            rounded.convert_to_f32_slice(elements);
        }
    }
}
