//! Byte strings of all ranks for every rank, and of one rank for all: small ones, sent from each rank to each.

use crate::CommError;
use crate::transport::{MAX_MESSAGE, Operation, Request, Step, Transport, settle, tag};
use std::sync::Arc;

/// Every rank gives bytes, and receives those of the ranks in `from`. Lengths may differ.
pub struct AllGather {
    own: Option<Arc<Vec<u8>>>,
    /// Ranks that give bytes.
    from: Vec<usize>,
    parts: Vec<Vec<u8>>,
    sends: Vec<((), Request)>,
    lengths: Vec<(usize, Request)>,
    contents: Vec<(usize, Request)>,
    phase: u16,
    tag: u16,
}

impl AllGather {
    /// `bytes` of this rank for all.
    pub fn new(bytes: Vec<u8>, ranks: usize) -> AllGather {
        Self::from_ranks((0..ranks).collect(), Some(bytes))
    }

    /// Nothing from any rank, by which each knows that all have come so far. No other operation takes its messages for its own.
    pub(crate) fn last(ranks: usize) -> AllGather {
        AllGather { phase: 2, ..Self::new(Vec::new(), ranks) }
    }

    /// `bytes` of rank `root` for all; the others give none.
    pub fn broadcast(root: usize, bytes: Option<Vec<u8>>) -> AllGather {
        Self::from_ranks(vec![root], bytes)
    }

    fn from_ranks(from: Vec<usize>, bytes: Option<Vec<u8>>) -> AllGather {
        AllGather {
            own: bytes.map(Arc::new),
            parts: vec![Vec::new(); from.len()],
            from,
            sends: Vec::new(),
            lengths: Vec::new(),
            contents: Vec::new(),
            phase: 0,
            tag: 0,
        }
    }

    /// The bytes of all ranks that gave some, in their order, when it is done.
    pub fn into_parts(self) -> Vec<Vec<u8>> {
        self.parts
    }
}

impl Operation for AllGather {
    fn post(&mut self, transport: &mut dyn Transport, sequence: u32) -> Result<(), CommError> {
        self.tag = tag(sequence, self.phase);
        let rank = transport.rank();
        for (index, &from) in self.from.iter().enumerate() {
            if from == rank {
                let own = self.own.as_ref().expect("a rank that is listed gives bytes");
                self.parts[index] = own.to_vec();
                let length = Arc::new((own.len() as u64).to_le_bytes().to_vec());
                for to in (0..transport.size()).filter(|&to| to != rank) {
                    self.sends.push(((), transport.send(to, self.tag, length.clone())?));
                    if !own.is_empty() {
                        self.sends.push(((), transport.send(to, self.tag + 1, own.clone())?));
                    }
                }
            } else {
                self.lengths.push((index, transport.receive(from, self.tag, 8)?));
            }
        }
        Ok(())
    }

    fn poll(&mut self, transport: &mut dyn Transport) -> Result<Step, CommError> {
        let mut known = Vec::new();
        let mut advanced = settle(&mut self.lengths, transport, |index, bytes| {
            known.push((index, u64::from_le_bytes(bytes.try_into().expect("8 bytes were awaited"))));
        })?;
        for (index, length) in known {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > MAX_MESSAGE {
                return Err(CommError::MessageTooLong { length });
            }
            if length > 0 {
                self.contents.push((index, transport.receive(self.from[index], self.tag + 1, length)?));
            }
        }
        let parts = &mut self.parts;
        advanced |= settle(&mut self.contents, transport, |index, bytes| parts[index] = bytes)?;
        advanced |= settle(&mut self.sends, transport, |(), _| ())?;
        let done = self.lengths.is_empty() && self.contents.is_empty() && self.sends.is_empty();
        Ok(Step::of(done, advanced))
    }
}
