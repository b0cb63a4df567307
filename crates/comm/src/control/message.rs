//! What ranks and the server say to each other, and how it is written on the wire.
//!
//! A frame is two lengths of 4 bytes (lowest first), a message in JSON, and a payload of plain bytes.

use crate::CommError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{ErrorKind, Read, Write};

/// Version of these messages. [`Hello`] keeps its first two fields in all versions.
pub(crate) const PROTOCOL: u32 = 2;
/// Longest message in JSON, in bytes.
const MAX_MESSAGE: u32 = 1 << 20;
/// Longest payload in bytes.
pub const MAX_PAYLOAD: u32 = 1 << 28;

/// What must be the same on all ranks; the texts are hashes or versions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// The program: its version, and a hash of its file.
    pub program: String,
    /// Hash of the resolved recipe.
    pub recipe: String,
    /// Identity of the data set.
    pub data: String,
    /// Hash of the compiled plan.
    pub plan: String,
}

/// The first message of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) protocol: u32,
    pub(crate) cookie: String,
    #[serde(default)]
    pub(crate) rank: usize,
    #[serde(default)]
    pub(crate) size: usize,
    #[serde(default)]
    pub(crate) host: String,
    #[serde(default)]
    pub(crate) identity: Identity,
}

/// What a rank does in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Before the first step.
    #[default]
    Start,
    /// Waiting for data.
    Load,
    /// Forward and backward pass.
    Compute,
    /// The optimizer.
    Update,
    /// Writing a checkpoint.
    Save,
    /// Evaluation.
    Evaluate,
}

/// Where a rank is; sent with each heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Number of the step.
    pub step: u64,
    /// Part of the step.
    pub phase: Phase,
    /// Micro-batch of this rank within the step, from 0.
    pub micro_batch: u32,
    /// All-reduces of the step that this rank has begun.
    pub begun: u32,
    /// All-reduces of the step that are done on this rank.
    pub done: u32,
    /// All-reduces of a step.
    pub collectives: u32,
}

impl Progress {
    /// Number of the all-reduce that this rank waits for, from 1.
    fn waits_for(&self) -> Option<u32> {
        (self.begun > self.done).then_some(self.done + 1)
    }

    /// Whether this rank has begun what `other` waits for.
    pub(crate) fn has_reached(&self, other: &Progress) -> bool {
        (self.step, self.begun) >= (other.step, other.done + 1)
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { step, micro_batch, collectives, .. } = self;
        if let Some(number) = self.waits_for() {
            return write!(f, "at step {step}, in all-reduce {number} of {collectives}");
        }
        match self.phase {
            Phase::Start => write!(f, "before the first step"),
            Phase::Load => write!(f, "at step {step}, loading micro-batch {micro_batch}"),
            Phase::Compute => write!(f, "at step {step}, computing micro-batch {micro_batch}"),
            Phase::Update => write!(f, "at step {step}, updating the weights"),
            Phase::Save => write!(f, "at step {step}, saving"),
            Phase::Evaluate => write!(f, "at step {step}, evaluating"),
        }
    }
}

/// How the ranks are asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stop {
    /// Behind the current step, with a checkpoint.
    AfterStep,
    /// At once.
    Now,
}

/// Why a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// A rank reported an error.
    Error,
    /// A rank closed its connection, sent nonsense, or fell silent.
    Lost,
    /// Ranks did not join in time.
    Missing,
    /// A rank of this job differs from rank 0.
    Refused,
    /// A rank was asked for what cannot be: its recipe, data or options are wrong.
    Usage,
    /// A collective took too long while all ranks were alive.
    Stuck,
}

/// The end of a job, the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What happened.
    pub kind: FailureKind,
    /// To which ranks.
    pub ranks: Vec<usize>,
    /// One sentence with ranks, hosts and steps.
    pub message: String,
}

/// Why one process may not join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    Cookie,
    /// Another process, on this host, has the same rank.
    Taken {
        host: String,
    },
    Differs {
        field: String,
        expected: String,
        found: String,
    },
}

/// From a rank to the server. The payload of `Give` is what the rank gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromRank {
    Hello(Hello),
    Beat(Progress),
    Failed {
        kind: FailureKind,
        message: String,
    },
    Stop(Stop),
    Stuck {
        progress: Progress,
        seconds: u64,
    },
    /// What was given to an exchange of this number has not been answered for so long.
    Unanswered {
        number: u64,
        seconds: u64,
    },
    Give {
        number: u64,
        to_all: bool,
    },
    Leave,
}

/// From the server to a rank. The payload of `Gathered` is what the ranks gave, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToRank {
    Refused(Refusal),
    Missing { ranks: Vec<usize> },
    Welcome { hosts: Vec<String> },
    Beat(Progress),
    Failed(Failure),
    Stop(Stop),
    Gathered { number: u64, lengths: Vec<usize> },
}

/// A message as bytes.
pub(crate) fn frame<M: Serialize>(message: &M, payload: &[u8]) -> Vec<u8> {
    let json = serde_json::to_vec(message).expect("messages are plain data");
    let mut bytes = Vec::with_capacity(8 + json.len() + payload.len());
    bytes.extend_from_slice(&(json.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&json);
    bytes.extend_from_slice(payload);
    bytes
}

/// Writes one message.
pub(crate) fn write<M: Serialize>(to: &mut impl Write, message: &M, payload: &[u8]) -> std::io::Result<()> {
    to.write_all(&frame(message, payload))
}

/// Reads one message with a payload of at most `max_payload` bytes. A length is believed only as far as bytes come.
///
/// # Errors
/// The connection ends or fails ([`CommError::Closed`]), or what comes is no message.
pub(crate) fn read<M: DeserializeOwned>(from: &mut impl Read, max_payload: u32) -> Result<(M, Vec<u8>), CommError> {
    let mut lengths = [0; 8];
    from.read_exact(&mut lengths).map_err(closed)?;
    let [message, payload] = [0, 4].map(|at| u32::from_le_bytes(lengths[at..at + 4].try_into().expect("4 bytes")));
    if message > MAX_MESSAGE || payload > max_payload {
        return Err(CommError::Malformed { reason: format!("lengths {message} and {payload}") });
    }
    let json = read_bytes(from, message)?;
    let payload = read_bytes(from, payload)?;
    let message = serde_json::from_slice(&json).map_err(|error| CommError::Malformed { reason: error.to_string() })?;
    Ok((message, payload))
}

fn read_bytes(from: &mut impl Read, length: u32) -> Result<Vec<u8>, CommError> {
    let mut bytes = Vec::new();
    let read = from.take(u64::from(length)).read_to_end(&mut bytes).map_err(closed)?;
    match read == length as usize {
        true => Ok(bytes),
        false => Err(closed(ErrorKind::UnexpectedEof.into())),
    }
}

fn closed(error: std::io::Error) -> CommError {
    let reason = match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "the connection was closed".to_owned()
        }
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "nothing was heard".to_owned(),
        _ => error.to_string(),
    };
    CommError::Closed { reason }
}

#[cfg(test)]
mod tests;
