//! Batches on their way to the device: through pinned memory and on a stream of their own, so that neither the host nor the steps
//! before wait for a copy.

use super::Gpu;
use super::executor::Memory;
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
    slots: Vec<Slot>,
    /// The slot of the next micro-batch.
    next: usize,
    stream: Stream,
    _memory: Allocation,
}

/// Feeds of a plan, by name.
fn feeds_of(plan: &Plan) -> impl Iterator<Item = (Value, &Input)> {
    plan.graph.inputs().filter(|(_, input)| input.role == Role::Feed)
}

/// Bytes of one micro-batch on its way.
fn bytes_of_slot(plan: &Plan) -> usize {
    feeds_of(plan).map(|(_, input)| input.ty.bytes().next_multiple_of(plan.alignment)).sum()
}

/// Bytes of the device's memory for micro-batches on their way.
pub(crate) fn bytes_of_feeds(plan: &Plan) -> usize {
    SLOTS * bytes_of_slot(plan)
}

/// Where the calls of a plan read a feed.
struct Feed {
    number: usize,
    ty: TensorType,
    place: Block,
}

/// A micro-batch that waits to be computed.
struct Slot {
    /// Of each feed by its number: memory of the host, and of the device.
    copies: Vec<(Pinned, Block)>,
    /// Which feeds were given for it.
    given: Vec<bool>,
    /// They are in memory of the device.
    arrived: Event,
    /// They are where the calls read them.
    taken: Event,
}

impl Feeds {
    /// Allocates memory for copies.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn new(gpu: &Gpu, plan: &Plan, memory: &Memory) -> Result<Feeds, RunError> {
        let feed = |(number, (value, input)): (usize, (Value, &Input))| {
            let place = memory.value(plan, value)?;
            Ok((input.name.clone(), Feed { number, ty: input.ty.clone(), place }))
        };
        let feeds = feeds_of(plan).enumerate().map(feed).collect::<Result<_, GpuError>>()?;
        let sizes: Vec<usize> = feeds_of(plan).map(|(_, input)| input.ty.bytes()).collect();
        let memory = gpu.ledger.allocate(&gpu.context, "batches on their way", bytes_of_feeds(plan))?;
        let of_slot = bytes_of_slot(plan);
        let slot = |number: usize| -> Result<Slot, GpuError> {
            let mut start = number * of_slot;
            let copy = |&bytes: &usize| {
                let block = memory.block(start, bytes)?;
                start += bytes.next_multiple_of(plan.alignment);
                Ok((gpu.context.pinned(bytes.max(1))?, block))
            };
            Ok(Slot {
                copies: sizes.iter().map(copy).collect::<Result<_, GpuError>>()?,
                given: vec![false; sizes.len()],
                arrived: gpu.context.event()?,
                taken: gpu.context.event()?,
            })
        };
        let slots = (0..SLOTS).map(slot).collect::<Result<_, GpuError>>()?;
        Ok(Feeds { feeds, slots, next: 0, stream: gpu.context.stream()?, _memory: memory })
    }

    /// Whether there is a feed of that name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.feeds.contains_key(name)
    }

    /// Sends the content of a feed for the next micro-batch. Waits only where that micro-batch was given one before, or for what the
    /// host gave [`SLOTS`] micro-batches ago.
    ///
    /// # Errors
    /// There is no such feed, or it has another size; the device failed.
    pub(super) fn send(&mut self, name: &str, bytes: &[u8]) -> Result<(), RunError> {
        let known = || self.feeds.keys().map(String::as_str);
        let Feed { number, ty, place } =
            self.feeds.get(name).ok_or_else(|| RunError::no_such_name("feed", name, known()))?;
        if place.bytes() != bytes.len() {
            let (expected, actual) = (place.bytes(), bytes.len());
            return Err(RunError::WrongSize { name: name.to_owned(), ty: ty.clone(), expected, actual });
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let slot = &mut self.slots[self.next];
        if slot.given[*number] {
            self.stream.synchronize()?;
        } else if !slot.given.contains(&true) {
            slot.arrived.synchronize()?;
            self.stream.wait(&slot.taken)?;
        }
        let (pinned, block) = &mut slot.copies[*number];
        pinned.write(0, bytes)?;
        self.stream.copy_in(pinned, block)?;
        slot.given[*number] = true;
        Ok(())
    }

    /// Puts what was sent for the next micro-batch where the calls read it, in the order of the device's stream.
    ///
    /// # Errors
    /// The driver refuses.
    pub(super) fn take(&mut self, stream: &Stream) -> Result<(), GpuError> {
        let slot = &mut self.slots[self.next];
        if !slot.given.contains(&true) {
            return Ok(());
        }
        self.stream.record(&slot.arrived)?;
        stream.wait(&slot.arrived)?;
        for feed in self.feeds.values().filter(|feed| slot.given[feed.number]) {
            stream.copy(&slot.copies[feed.number].1, &feed.place)?;
        }
        stream.record(&slot.taken)?;
        slot.given.fill(false);
        self.next = (self.next + 1) % SLOTS;
        Ok(())
    }
}
