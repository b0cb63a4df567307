//! Whether each launch touches the memory that is its own, and no other. All tensors of a plan lie in one allocation, so that tools that
//! watch allocations do not see that.

use super::bound::BoundStep;
use super::locked;
use crate::driver::{Block, Stream};
use crate::error::GpuError;
use std::fmt::Display;
use std::ops::Range;
use std::sync::Mutex;

/// What outputs and scratch memory are filled with before a call is launched, once with each: not a number in all types of floats, and
/// finite numbers.
const FILLS: [u8; 2] = [0xff, 0x55];

/// Memory that a launch reads, and memory that it writes.
#[derive(Default)]
struct Footprint {
    read: Vec<Block>,
    written: Vec<Block>,
}

impl Footprint {
    fn new(blocks: impl IntoIterator<Item = (Block, bool)>) -> Footprint {
        let mut footprint = Footprint::default();
        for (block, is_written) in blocks {
            let list = if is_written { &mut footprint.written } else { &mut footprint.read };
            list.push(block);
        }
        footprint
    }
}

impl BoundStep {
    fn footprint(&self) -> Result<Footprint, GpuError> {
        Ok(match self {
            BoundStep::Launch(function, blocks) => {
                let own =
                    |((bytes, is_written), block): ((usize, bool), &Block)| Ok((block.part(0, bytes)?, is_written));
                Footprint::new(function.memory().zip(blocks).map(own).collect::<Result<Vec<_>, GpuError>>()?)
            }
            // Where its members lie is known to the device alone.
            BoundStep::Group { arguments, kept, .. } => {
                Footprint { read: kept.clone(), written: arguments.iter().chain(kept).cloned().collect() }
            }
            BoundStep::Product(prepared) => Footprint::new(prepared.memory()),
            BoundStep::Convolution(bound) => Footprint::new(bound.memory()),
            BoundStep::Zero(block) => Footprint { read: Vec::new(), written: vec![block.clone()] },
            BoundStep::Copy(from, to) => Footprint { read: vec![from.clone()], written: vec![to.clone()] },
            // They touch a message, which lies elsewhere.
            BoundStep::Exchange(_) | BoundStep::Await(_) => Footprint::default(),
        })
    }
}

/// An allocation that is watched.
struct Region {
    name: &'static str,
    block: Block,
}

/// Bytes of one of the allocations, by its number.
#[derive(Clone)]
struct Bytes {
    region: usize,
    range: Range<usize>,
}

/// What allocations hold, in order.
type Content = [Vec<u8>; 2];

/// The memory of tensors of a plan while launches are checked.
pub(super) struct Watch {
    regions: [Region; 2],
    /// Not 0 when kernels leave state as it is.
    halt: Block,
    known: Mutex<Known>,
}

/// What is known of the memory.
struct Known {
    /// Whether it holds that still.
    is_current: bool,
    content: Content,
    /// Where it is read to.
    read: Content,
}

impl Watch {
    /// `halt` is not 0 when kernels leave state as it is.
    pub(super) fn new(arena: Block, state: Block, halt: Block) -> Watch {
        let regions = [("the plan's arena", arena), ("the state", state)];
        let regions = regions.map(|(name, block)| Region { name, block });
        let empty = || regions.each_ref().map(|region| vec![0; region.block.bytes()]);
        let known = Mutex::new(Known { is_current: false, content: empty(), read: empty() });
        Watch { regions, halt, known }
    }

    /// The memory may be changed by others until the next call is checked.
    pub(super) fn forget(&self) {
        locked(&self.known).is_current = false;
    }

    /// Gives the steps of a call, whose name is for errors, to the stream by `give`, one by one. Each may change nothing but what it
    /// writes, and together they must write all of the `outputs` without reading what these, or scratch memory, held before: where
    /// there are outputs, the steps are run twice.
    ///
    /// # Errors
    /// [`GpuError::Footprint`]; those of `give`; the driver refuses.
    pub(super) fn check(
        &self,
        stream: &Stream,
        call: &dyn Display,
        steps: &[&BoundStep],
        outputs: &[Block],
        give: impl Fn(&BoundStep) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let wrong = |problem: String| GpuError::Footprint { call: call.to_string(), problem };
        let footprints = steps.iter().map(|step| step.footprint()).collect::<Result<Vec<_>, GpuError>>()?;
        let mut known = locked(&self.known);
        let Known { is_current, content, read } = &mut *known;
        if !std::mem::replace(is_current, false) {
            self.read(stream, content)?;
        }
        let own = footprints.iter().flat_map(|footprint| &footprint.written).chain(outputs);
        let own: Vec<Bytes> = own.filter_map(|block| self.bytes(block)).collect();
        let before: Vec<Vec<u8>> = own.iter().map(|bytes| bytes.of(content).to_vec()).collect();
        let before: Vec<(&Bytes, &[u8])> = own.iter().zip(before.iter().map(Vec::as_slice)).collect();
        let mut run = |fill: Option<u8>, is_watched: bool| {
            before.iter().for_each(|(bytes, before)| bytes.of_mut(content).copy_from_slice(before));
            if let Some(fill) = fill {
                self.fill(content, &before, &footprints, outputs, fill);
            }
            self.write(stream, content, &own)?;
            for (number, (step, footprint)) in steps.iter().zip(&footprints).enumerate() {
                give(step)?;
                if !is_watched {
                    continue;
                }
                self.read(stream, read)?;
                if let Some(problem) = self.compare(content, read, &footprint.written) {
                    return Err(wrong(format!("launch {} of {} {problem}", number + 1, steps.len())));
                }
            }
            if !is_watched {
                own.iter().try_for_each(|bytes| stream.download(&self.block(bytes)?, bytes.of_mut(content)))?;
            }
            let given = outputs.iter().filter_map(|output| self.bytes(output));
            Ok(given.map(|bytes| bytes.of(content).to_vec()).collect::<Vec<_>>())
        };
        if outputs.is_empty() {
            run(None, true)?;
        } else {
            let first = run(Some(FILLS[0]), true)?;
            if self.is_halted(stream)? {
                // Kernels that replace state did nothing.
                run(None, true)?;
            } else {
                let second = run(Some(FILLS[1]), false)?;
                for (number, (first, second)) in first.iter().zip(&second).enumerate() {
                    if let Some(byte) = difference(first, second) {
                        let bytes = first.len();
                        let problem = "is not written, or follows from memory that is not";
                        return Err(wrong(format!("byte {byte} of {bytes} of output {number} {problem}")));
                    }
                }
            }
        }
        *is_current = true;
        Ok(())
    }

    /// Where a block lies, unless it is in no allocation that is watched.
    fn bytes(&self, block: &Block) -> Option<Bytes> {
        self.regions.iter().enumerate().find_map(|(region, of)| {
            let start = block.address().checked_sub(of.block.address())? as usize;
            let range = start..start + block.bytes();
            (range.end <= of.block.bytes()).then_some(Bytes { region, range })
        })
    }

    /// Fills outputs, and what launches write, unless one of them reads it before. From the last launch on: what one reads is as it
    /// was, whatever those behind it write.
    fn fill(
        &self,
        content: &mut Content,
        before: &[(&Bytes, &[u8])],
        footprints: &[Footprint],
        outputs: &[Block],
        byte: u8,
    ) {
        let fill = |content: &mut Content, blocks: &[Block]| {
            blocks.iter().filter_map(|block| self.bytes(block)).for_each(|bytes| bytes.of_mut(content).fill(byte));
        };
        fill(content, outputs);
        for Footprint { read, written } in footprints.iter().rev() {
            fill(content, written);
            for read in read.iter().filter_map(|block| self.bytes(block)) {
                for (bytes, before) in before.iter().filter(|(bytes, _)| bytes.region == read.region) {
                    let start = bytes.range.start.max(read.range.start);
                    let end = bytes.range.end.min(read.range.end);
                    if start < end {
                        let from = bytes.range.start;
                        content[read.region][start..end].copy_from_slice(&before[start - from..end - from]);
                    }
                }
            }
        }
    }

    /// Adds to the content before a launch what it has written. What else it has changed, in words.
    fn compare(&self, content: &mut Content, after: &Content, written: &[Block]) -> Option<String> {
        for bytes in written.iter().filter_map(|block| self.bytes(block)) {
            bytes.of_mut(content).copy_from_slice(bytes.of(after));
        }
        self.regions.iter().zip(&*content).zip(after).find_map(|((region, expected), actual)| {
            let byte = difference(expected, actual)?;
            let (name, bytes) = (region.name, region.block.bytes());
            Some(format!("changes byte {byte} of {bytes} of {name}, which is not its own"))
        })
    }

    fn is_halted(&self, stream: &Stream) -> Result<bool, GpuError> {
        let mut word = [0; 4];
        stream.download(&self.halt.part(0, word.len())?, &mut word)?;
        Ok(word != [0; 4])
    }

    fn read(&self, stream: &Stream, content: &mut Content) -> Result<(), GpuError> {
        self.regions.iter().zip(content).try_for_each(|(region, bytes)| stream.download(&region.block, bytes))
    }

    fn write(&self, stream: &Stream, content: &Content, own: &[Bytes]) -> Result<(), GpuError> {
        own.iter().try_for_each(|bytes| stream.upload(bytes.of(content), &self.block(bytes)?))
    }

    fn block(&self, bytes: &Bytes) -> Result<Block, GpuError> {
        self.regions[bytes.region].block.part(bytes.range.start, bytes.range.len())
    }
}

impl Bytes {
    fn of<'a>(&self, content: &'a Content) -> &'a [u8] {
        &content[self.region][self.range.clone()]
    }

    fn of_mut<'a>(&self, content: &'a mut Content) -> &'a mut [u8] {
        &mut content[self.region][self.range.clone()]
    }
}

/// The first byte in which two contents differ.
fn difference(x: &[u8], y: &[u8]) -> Option<usize> {
    if x == y { None } else { x.iter().zip(y).position(|(x, y)| x != y) }
}
