//! Latency and bandwidth between two ranks, as collectives see them: with the sleeps of the communication thread.

use crate::CommError;
use crate::transport::{Operation, Request, Step, Transport, settle, tag};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Lengths of messages in bytes, how long each is exchanged, and how often at most.
const SIZES: [(usize, Duration, usize); 2] =
    [(64 << 10, Duration::from_millis(100), 200), (8 << 20, Duration::from_millis(200), 50)];

/// What a message costs: a fixed time, and a time for each byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Seconds of a message without bytes.
    pub latency: f64,
    /// Bytes a second.
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

/// Exchanges messages of 64 KB and 8 MB between two ranks for about 0.3 s. All ranks run it; the others are done at once.
///
/// The first byte of a message is 1 if another of its length follows.
pub struct LinkProbe {
    pair: [usize; 2],
    peer: usize,
    leads: bool,
    tag: u16,
    size: usize,
    begun: Instant,
    sent: Instant,
    /// The round trip under way is the last of its length.
    last: bool,
    round_trips: [Vec<f64>; 2],
    /// A message may come before the last one sent is known to be complete.
    sends: Vec<((), Request)>,
    receive: Option<Request>,
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
            round_trips: [Vec::new(), Vec::new()],
            sends: Vec::new(),
            receive: None,
            done: true,
        }
    }

    /// What was measured, when it is done; on the first rank of the pair alone.
    pub fn link(&self) -> Option<Link> {
        let median = |times: &[f64]| {
            // The first exchange opens the connection.
            let mut sorted = times.get(1..).filter(|times| !times.is_empty())?.to_vec();
            sorted.sort_by(f64::total_cmp);
            Some(sorted[sorted.len() / 2] / 2.0)
        };
        Some(Link::through(median(&self.round_trips[0])?, median(&self.round_trips[1])?))
    }

    /// Sends the next message and awaits the answer.
    fn lead(&mut self, transport: &mut dyn Transport) -> Result<(), CommError> {
        let (length, time, most) = SIZES[self.size];
        let count = self.round_trips[self.size].len();
        if count == 0 {
            self.begun = Instant::now();
        }
        self.last = count + 1 >= most || (count > 0 && self.begun.elapsed() > time);
        let mut bytes = vec![0; length];
        bytes[0] = u8::from(!self.last);
        self.receive = Some(transport.receive(self.peer, self.tag, length)?);
        self.sent = Instant::now();
        self.sends.push(((), transport.send(self.peer, self.tag, Arc::new(bytes))?));
        Ok(())
    }

    /// Takes a message.
    fn received(&mut self, bytes: Vec<u8>, transport: &mut dyn Transport) -> Result<(), CommError> {
        if self.leads {
            self.round_trips[self.size].push(self.sent.elapsed().as_secs_f64());
        } else {
            self.last = bytes[0] == 0;
            self.sends.push(((), transport.send(self.peer, self.tag, Arc::new(bytes))?));
        }
        self.size += usize::from(self.last);
        self.done = self.size == SIZES.len();
        if !self.leads && !self.done {
            self.receive = Some(transport.receive(self.peer, self.tag, SIZES[self.size].0)?);
        }
        Ok(())
    }
}

impl Operation for LinkProbe {
    fn post(&mut self, transport: &mut dyn Transport, sequence: u32) -> Result<(), CommError> {
        let Some(place) = self.pair.iter().position(|&rank| rank == transport.rank()) else { return Ok(()) };
        self.tag = tag(sequence, 0);
        self.peer = self.pair[1 - place];
        self.leads = place == 0;
        self.done = false;
        if !self.leads {
            self.receive = Some(transport.receive(self.peer, self.tag, SIZES[0].0)?);
        }
        Ok(())
    }

    fn poll(&mut self, transport: &mut dyn Transport) -> Result<Step, CommError> {
        let mut moved = settle(&mut self.sends, transport, |(), _| ())?;
        if let Some(request) = self.receive
            && let Some(bytes) = transport.test(request)?
        {
            (self.receive, moved) = (None, true);
            self.received(bytes, transport)?;
        }
        if self.leads && !self.done && self.sends.is_empty() && self.receive.is_none() {
            self.lead(transport)?;
            moved = true;
        }
        Ok(Step::of(self.done && self.sends.is_empty() && self.receive.is_none(), moved))
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
