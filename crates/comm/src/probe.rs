//! Latency and bandwidth between two ranks, as collectives see them: with the sleeps of the communication thread.

use crate::CommError;
use crate::transport::{Operation, Request, Step, Transport, settle, tag};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Lengths of messages in bytes, how long each is exchanged, and how often at most.
const SIZES: [(usize, Duration, usize); 2] =
    [(64 << 10, Duration::from_millis(100), 200), (8 << 20, Duration::from_millis(200), 50)];

/// What a message costs while one of its length travels the other way, as in sums over ranks: a fixed time, and a time for each byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Seconds of a message without bytes.
    pub latency: f64,
    /// Bytes a second in each direction.
    pub bandwidth: f64,
}

impl Link {
    /// The line through the times, in seconds, of one message of 64 KB and one of 8 MB.
    fn through(small: f64, large: f64) -> Link {
        let [(few, ..), (many, ..)] = SIZES;
        // Noise may make the longer message as fast as the shorter one.
        let slope = ((large - small) / (many - few) as f64).max(1e-13);
        Link { latency: (small - slope * few as f64).max(0.0), bandwidth: 1.0 / slope }
    }
}

/// Exchanges messages of 64 KB and 8 MB between two ranks, both ways at once, for about 0.3 s. All ranks run it; the others are done at
/// once.
///
/// The first byte of a message of the rank that measures is 1 if another of its length follows.
pub struct LinkProbe {
    pair: [usize; 2],
    peer: usize,
    leads: bool,
    tag: u16,
    size: usize,
    begun: Instant,
    sent: Instant,
    /// The exchange under way is the last of its length.
    last: bool,
    exchanges: [Vec<f64>; 2],
    sends: Vec<((), Request)>,
    receive: Option<Request>,
    received: Option<Vec<u8>>,
    done: bool,
}

impl LinkProbe {
    /// Between these two different ranks; the first one measures.
    pub fn new(pair: [usize; 2]) -> LinkProbe {
        let now = Instant::now();
        LinkProbe {
            pair,
            peer: 0,
            leads: false,
            tag: 0,
            size: 0,
            begun: now,
            sent: now,
            last: false,
            exchanges: [Vec::new(), Vec::new()],
            sends: Vec::new(),
            receive: None,
            received: None,
            done: true,
        }
    }

    /// What was measured, when it is done; on the first rank of the pair alone.
    pub fn link(&self) -> Option<Link> {
        let median = |times: &[f64]| {
            // The first exchange opens the connection, and begins when the later rank does.
            let mut sorted = times.get(1..).filter(|times| !times.is_empty())?.to_vec();
            sorted.sort_by(f64::total_cmp);
            Some(sorted[sorted.len() / 2])
        };
        Some(Link::through(median(&self.exchanges[0])?, median(&self.exchanges[1])?))
    }

    /// Begins the next exchange.
    fn begin(&mut self, transport: &mut dyn Transport) -> Result<(), CommError> {
        let (length, time, most) = SIZES[self.size];
        let mut bytes = vec![0; length];
        if self.leads {
            let count = self.exchanges[self.size].len();
            if count == 0 {
                self.begun = Instant::now();
            }
            self.last = count + 1 >= most || (count > 1 && self.begun.elapsed() > time);
            bytes[0] = u8::from(!self.last);
        }
        self.receive = Some(transport.receive(self.peer, self.tag, length)?);
        self.sent = Instant::now();
        self.sends.push(((), transport.send(self.peer, self.tag, Arc::new(bytes))?));
        Ok(())
    }

    /// Ends an exchange in which `bytes` came.
    fn end(&mut self, bytes: &[u8]) {
        if self.leads {
            self.exchanges[self.size].push(self.sent.elapsed().as_secs_f64());
        } else {
            self.last = bytes[0] == 0;
        }
        self.size += usize::from(self.last);
        self.done = self.size == SIZES.len();
    }
}

impl Operation for LinkProbe {
    fn post(&mut self, transport: &mut dyn Transport, sequence: u32) -> Result<(), CommError> {
        let Some(place) = self.pair.iter().position(|&rank| rank == transport.rank()) else { return Ok(()) };
        self.tag = tag(sequence, 0);
        self.peer = self.pair[1 - place];
        self.leads = place == 0;
        self.done = false;
        self.begin(transport)
    }

    fn poll(&mut self, transport: &mut dyn Transport) -> Result<Step, CommError> {
        let mut moved = settle(&mut self.sends, transport, |(), _| ())?;
        if let Some(request) = self.receive
            && let Some(bytes) = transport.test(request)?
        {
            (self.receive, self.received, moved) = (None, Some(bytes), true);
        }
        if self.sends.is_empty()
            && let Some(bytes) = self.received.take()
        {
            self.end(&bytes);
            if !self.done {
                self.begin(transport)?;
            }
        }
        Ok(Step::of(self.done, moved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_the_line_through_two_times() {
        let time = |bytes: f64| 50e-6 + bytes / 1e9;
        let link = Link::through(time(65_536.0), time(8_388_608.0));
        assert!((link.latency - 50e-6).abs() < 1e-12 && (link.bandwidth - 1e9).abs() < 1.0, "{link:?}");
        let odd = Link::through(2e-3, 1e-3);
        assert!(odd.latency > 0.0 && odd.bandwidth.is_finite());
    }
}
