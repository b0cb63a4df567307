//! The control channel: one TCP connection of every rank to a server on rank 0. It joins the ranks of a job, compares what must
//! be equal, knows who is alive and where, tells everyone of the first failure, and gathers small byte strings. Tensors do
//! not go through it.
//!
//! Rank 0 runs the [`Server`], and every rank, rank 0 too, joins it with a [`Control`].

mod client;
mod message;
mod server;
mod state;

pub use client::{Control, Watcher};
pub use message::{Failure, FailureKind, Identity, MAX_PAYLOAD, Phase, Progress, Stop};
pub use server::{Server, listen};
pub use state::Deadlines;

use message::{Hello, PROTOCOL};

/// What the ranks of one job know before they meet.
#[derive(Clone, Debug)]
pub struct Job {
    /// Differs from that of other jobs.
    pub cookie: String,
    /// Number of ranks.
    pub size: usize,
    /// What must be the same on all ranks.
    pub identity: Identity,
    /// Deadlines; those of rank 0 count for joining and silence.
    pub deadlines: Deadlines,
}

impl Job {
    fn hello(&self, rank: usize) -> Hello {
        Hello {
            protocol: PROTOCOL,
            cookie: self.cookie.clone(),
            rank,
            size: self.size,
            host: crate::net::host_name(),
            identity: self.identity.clone(),
        }
    }
}
