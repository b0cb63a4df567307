//! Batches on their way to the device: through pinned memory and on a stream of their own, so that neither the host nor the steps
//! before wait for a copy.

use super::Gpu;
use super::bound::Memory;
use super::ledger::Allocation;
use crate::driver::{Block, Event, Pinned, Stream};
use crate::error::GpuError;
use bessemer_ir::ops::source::Input;
use bessemer_ir::plan::Plan;
use bessemer_ir::run::RunError;
use bessemer_ir::{Role, TensorType, Value};
use std::collections::BTreeMap;

/// Micro-batches that may be on their way, or wait to be computed, at once.
const SLOTS: usize = 3;

/// The feeds of a plan.
pub(super) struct Feeds {
    /// By name.
    feeds: BTreeMap<String, Feed>,
    /// What happened to the micro-batch of each slot.
    slots: Vec<Slot>,
    /// The slot of the next micro-batch.
    next: usize,
    stream: Stream,
    _memory: Allocation,
}

/// A feed, and where the calls of a plan read it.
struct Feed {
    ty: TensorType,
    place: Block,
    /// Of each slot: memory of the host, and of the device.
    copies: Vec<(Pinned, Block)>,
    /// Whether the next micro-batch was given one.
    is_given: bool,
}

struct Slot {
    /// All that was given is in memory of the device.
    arrived: Event,
    /// It is where the calls read it.
    taken: Event,
}

/// Feeds of a plan.
fn feeds_of(plan: &Plan) -> impl Iterator<Item = (Value, &Input)> {
    plan.graph.inputs().filter(|(_, input)| input.role == Role::Feed)
}

/// Bytes of a feed in a slot, with which the next one is aligned.
fn bytes_of_copy(plan: &Plan, input: &Input) -> usize {
    input.ty.bytes().next_multiple_of(plan.alignment)
}

/// Bytes of the device's memory for micro-batches on their way.
pub(crate) fn bytes_of_feeds(plan: &Plan) -> usize {
    feeds_of(plan).map(|(_, input)| SLOTS * bytes_of_copy(plan, input)).sum()
}

impl Feeds {
    /// Allocates memory for copies.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn new(gpu: &Gpu, plan: &Plan, memory: &Memory) -> Result<Feeds, RunError> {
        let allocation = gpu.ledger.allocate(&gpu.context, "batches on their way", bytes_of_feeds(plan))?;
        let mut start = 0;
        let mut copy = |input: &Input| -> Result<(Pinned, Block), GpuError> {
            let bytes = input.ty.bytes();
            let block = allocation.block(start, bytes)?;
            start += bytes_of_copy(plan, input);
            Ok((gpu.context.pinned(bytes.max(1))?, block))
        };
        let feed = |(value, input): (Value, &Input)| {
            let (ty, place) = (input.ty.clone(), memory.value(plan, value)?);
            let copies = (0..SLOTS).map(|_| copy(input)).collect::<Result<_, GpuError>>()?;
            Ok((input.name.clone(), Feed { ty, place, copies, is_given: false }))
        };
        let feeds = feeds_of(plan).map(feed).collect::<Result<_, GpuError>>()?;
        let slot = |_| Ok(Slot { arrived: gpu.context.event()?, taken: gpu.context.event()? });
        let slots = (0..SLOTS).map(slot).collect::<Result<_, GpuError>>()?;
        Ok(Feeds { feeds, slots, next: 0, stream: gpu.context.stream()?, _memory: allocation })
    }

    /// Whether there is a feed of that name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.feeds.contains_key(name)
    }

    /// Whether the next micro-batch was given anything.
    fn is_begun(&self) -> bool {
        self.feeds.values().any(|feed| feed.is_given)
    }

    /// Sends the content of a feed for the next micro-batch. Waits only where that micro-batch was given one before, or for what the
    /// host gave [`SLOTS`] micro-batches ago.
    ///
    /// # Errors
    /// There is no such feed, or it has another size; the device failed.
    pub(super) fn send(&mut self, name: &str, bytes: &[u8]) -> Result<(), RunError> {
        let is_begun = self.is_begun();
        let Some(feed) = self.feeds.get_mut(name) else {
            return Err(RunError::no_such_name("feed", name, self.feeds.keys().map(String::as_str)));
        };
        if feed.place.bytes() != bytes.len() {
            let (expected, actual) = (feed.place.bytes(), bytes.len());
            return Err(RunError::WrongSize { name: name.to_owned(), ty: feed.ty.clone(), expected, actual });
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let slot = &self.slots[self.next];
        if feed.is_given {
            self.stream.synchronize()?;
        } else if !is_begun {
            slot.arrived.synchronize()?;
            self.stream.wait(&slot.taken)?;
        }
        let (pinned, block) = &mut feed.copies[self.next];
        pinned.write(0, bytes)?;
        self.stream.copy_in(pinned, block)?;
        feed.is_given = true;
        Ok(())
    }

    /// Puts what was sent for the next micro-batch where the calls read it, in the order of the device's stream.
    ///
    /// # Errors
    /// The driver refuses.
    pub(super) fn take(&mut self, stream: &Stream) -> Result<(), GpuError> {
        if !self.is_begun() {
            return Ok(());
        }
        let slot = &self.slots[self.next];
        self.stream.record(&slot.arrived)?;
        stream.wait(&slot.arrived)?;
        for feed in self.feeds.values_mut().filter(|feed| feed.is_given) {
            stream.copy(&feed.copies[self.next].1, &feed.place)?;
            feed.is_given = false;
        }
        stream.record(&slot.taken)?;
        self.next = (self.next + 1) % SLOTS;
        Ok(())
    }
}
