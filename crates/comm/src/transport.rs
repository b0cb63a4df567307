//! Messages of bytes between ranks, without waiting: what collectives need of a message layer.

use crate::CommError;
use std::sync::Arc;
use std::time::Duration;

/// Longest message in bytes: MPI counts in `int`.
pub const MAX_MESSAGE: usize = 1 << 30;

/// A send or a receive under way, of the transport that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request(pub(crate) u64);

/// A message layer, as one rank sees it.
///
/// Two messages between the same ranks with the same tag are received in the order in which they were sent, by the receives in
/// the order in which those were posted. After an error nothing but [`cancel`](Transport::cancel) may be called.
pub trait Transport {
    /// Number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Starts to send `bytes`, at most [`MAX_MESSAGE`], to rank `to`. The tag is below 32768.
    ///
    /// # Errors
    /// The message is too long, or the message layer fails.
    fn send(&mut self, to: usize, tag: u16, bytes: Arc<Vec<u8>>) -> Result<Request, CommError>;

    /// Starts to receive exactly `length` bytes from rank `from`.
    ///
    /// # Errors
    /// The message is too long, or the message layer fails.
    fn receive(&mut self, from: usize, tag: u16, length: usize) -> Result<Request, CommError>;

    /// The received bytes, or none for a send, if the request is complete; it is then forgotten.
    ///
    /// # Errors
    /// The message layer fails, or the other rank is gone.
    fn test(&mut self, request: Request) -> Result<Option<Vec<u8>>, CommError>;

    /// Sends what the message layer has kept of sends that are complete. Some layers send it only while they are called, and other ranks
    /// wait for those messages. Called again and again while no request is tested. What fails, the next call reports.
    fn progress(&mut self);

    /// Gives up all requests after a rank was lost. Every later call fails with [`CommError::Cancelled`].
    fn cancel(&mut self);
}

/// Something that takes messages to and fro until it is done, the same on all ranks.
///
/// `sequence` is the number of the operation on its transport. All ranks start the same operations in the same order, and may
/// have several under way.
pub trait Operation {
    /// Posts the first messages.
    ///
    /// # Errors
    /// Those of the transport.
    fn post(&mut self, transport: &mut dyn Transport, sequence: u32) -> Result<(), CommError>;

    /// Goes on as far as messages have come.
    ///
    /// # Errors
    /// Those of the transport.
    fn poll(&mut self, transport: &mut dyn Transport) -> Result<Step, CommError>;
}

/// What one poll of an operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// No message has come.
    Waiting,
    /// Some came, others are awaited.
    Advanced,
    /// All is done.
    Done,
}

impl Step {
    pub(crate) fn of(done: bool, advanced: bool) -> Step {
        match (done, advanced) {
            (true, _) => Step::Done,
            (false, true) => Step::Advanced,
            (false, false) => Step::Waiting,
        }
    }
}

/// Asked while waiting: an error ends the wait.
pub type Watch<'a> = &'a dyn Fn() -> Result<(), CommError>;

/// Runs an operation to its end. After an error the transport is cancelled.
///
/// # Errors
/// Those of the transport and of `watch`.
pub fn complete(
    operation: &mut dyn Operation,
    transport: &mut dyn Transport,
    sequence: u32,
    watch: Watch,
) -> Result<(), CommError> {
    let mut run = || {
        operation.post(transport, sequence)?;
        let mut pause = Pause::default();
        loop {
            match operation.poll(transport)? {
                Step::Done => return Ok(()),
                Step::Advanced => pause.reset(),
                Step::Waiting => {
                    watch()?;
                    pause.sleep();
                }
            }
        }
    };
    run().inspect_err(|_| transport.cancel())
}

/// The tag of one phase of an operation. Tags return after 8192 operations, long after those were done.
pub(crate) fn tag(sequence: u32, phase: u16) -> u16 {
    debug_assert!(phase < 4);
    (sequence % 8192) as u16 * 4 + phase
}

/// Tests requests, each with what it is for, and hands those that are complete to `done`. Returns whether any was.
pub(crate) fn settle<K: Copy>(
    requests: &mut Vec<(K, Request)>,
    transport: &mut dyn Transport,
    mut done: impl FnMut(K, Vec<u8>),
) -> Result<bool, CommError> {
    let (before, mut at) = (requests.len(), 0);
    while at < requests.len() {
        match transport.test(requests[at].1)? {
            Some(bytes) => done(requests.swap_remove(at).0, bytes),
            None => at += 1,
        }
    }
    Ok(requests.len() < before)
}

/// Sleeps between polls, so that waiting leaves the cores to kernels: 20 us at first, up to 200 us.
#[derive(Debug, Default)]
pub struct Pause {
    sleeps: u32,
}

impl Pause {
    /// Sleeps, longer than the last time.
    pub fn sleep(&mut self) {
        std::thread::sleep(Duration::from_micros(20) * self.sleeps.clamp(1, 10));
        self.sleeps += 1;
    }

    /// Begins with short sleeps again.
    pub fn reset(&mut self) {
        self.sleeps = 0;
    }
}
