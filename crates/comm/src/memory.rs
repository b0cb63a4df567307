//! Ranks as threads of one process, with messages through memory: for tests, which may also shuffle the order in which messages
//! arrive.

use crate::CommError;
use crate::transport::{MAX_MESSAGE, Request, Transport};
use bessemer_philox::{Stream, halves};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One rank's end of messages through memory. A rank whose end is dropped is lost to the others.
pub struct MemoryTransport {
    rank: usize,
    shared: Arc<Mutex<Shared>>,
    size: usize,
    /// Messages counted by (other rank, tag), sent and received.
    sent: BTreeMap<(usize, u16), u64>,
    received: BTreeMap<(usize, u16), u64>,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    delays: Option<Stream>,
    cancelled: bool,
}

/// (from, to, tag, number among those of the same three)
type Address = (usize, usize, u16, u64);

struct Shared {
    messages: BTreeMap<Address, Arc<Vec<u8>>>,
    gone: Vec<bool>,
}

struct Pending {
    /// What is awaited and its length; none for a send, which the other rank need not have received.
    receive: Option<(Address, usize)>,
    /// Tests that find the request incomplete whatever has come.
    delay: u32,
}

/// Ends of `size` ranks that exchange messages at once.
pub fn ranks(size: usize) -> Vec<MemoryTransport> {
    build(size, |_| None)
}

/// Ends of `size` ranks whose requests complete in an order that depends on `seed`, with the guarantees of [`Transport`].
pub fn shuffled_ranks(size: usize, seed: u64) -> Vec<MemoryTransport> {
    build(size, |rank| Some(Stream::new(halves(seed), [rank as u32, 0, 0])))
}

fn build(size: usize, delays: impl Fn(usize) -> Option<Stream>) -> Vec<MemoryTransport> {
    let shared = Arc::new(Mutex::new(Shared { messages: BTreeMap::new(), gone: vec![false; size] }));
    let end = |rank| MemoryTransport {
        rank,
        shared: shared.clone(),
        size,
        sent: BTreeMap::new(),
        received: BTreeMap::new(),
        pending: BTreeMap::new(),
        next: 0,
        delays: delays(rank),
        cancelled: false,
    };
    (0..size).map(end).collect()
}

impl MemoryTransport {
    /// Requests that are not complete.
    pub fn open_requests(&self) -> usize {
        self.pending.len()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, length: usize) -> Result<(), CommError> {
        match (self.cancelled, length > MAX_MESSAGE) {
            (true, _) => Err(CommError::Cancelled),
            (false, true) => Err(CommError::MessageTooLong { length }),
            (false, false) => Ok(()),
        }
    }

    fn pending(&mut self, receive: Option<(Address, usize)>) -> Request {
        let delay = self.delays.as_mut().map_or(0, |stream| stream.below(6));
        self.next += 1;
        self.pending.insert(self.next, Pending { receive, delay });
        Request(self.next)
    }
}

/// The number of the next message, which is counted.
fn next_number(counts: &mut BTreeMap<(usize, u16), u64>, other: usize, tag: u16) -> u64 {
    let count = counts.entry((other, tag)).or_default();
    *count += 1;
    *count
}

impl Transport for MemoryTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send(&mut self, to: usize, tag: u16, bytes: Arc<Vec<u8>>) -> Result<Request, CommError> {
        self.check(bytes.len())?;
        let address = (self.rank, to, tag, next_number(&mut self.sent, to, tag));
        self.shared().messages.insert(address, bytes);
        Ok(self.pending(None))
    }

    fn receive(&mut self, from: usize, tag: u16, length: usize) -> Result<Request, CommError> {
        self.check(length)?;
        let address = (from, self.rank, tag, next_number(&mut self.received, from, tag));
        Ok(self.pending(Some((address, length))))
    }

    fn test(&mut self, request: Request) -> Result<Option<Vec<u8>>, CommError> {
        self.check(0)?;
        let pending = self.pending.get_mut(&request.0).expect("a request is tested until it is complete");
        if pending.delay > 0 {
            pending.delay -= 1;
            return Ok(None);
        }
        let Some((address, length)) = pending.receive else {
            self.pending.remove(&request.0);
            return Ok(Some(Vec::new()));
        };
        let (message, gone) = {
            let mut shared = self.shared();
            (shared.messages.remove(&address), shared.gone[address.0])
        };
        match message {
            Some(bytes) if bytes.len() == length => {
                self.pending.remove(&request.0);
                Ok(Some(Arc::unwrap_or_clone(bytes)))
            }
            Some(bytes) => Err(CommError::MessageLength { rank: address.0, length: bytes.len(), expected: length }),
            None if gone => Err(CommError::Disconnected { rank: address.0 }),
            None => Ok(None),
        }
    }

    /// Messages are with the other rank at once.
    fn progress(&mut self) {}

    fn cancel(&mut self) {
        self.cancelled = true;
        self.pending.clear();
    }
}

impl Drop for MemoryTransport {
    fn drop(&mut self) {
        let rank = self.rank;
        self.shared().gone[rank] = true;
    }
}
