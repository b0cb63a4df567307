//! What can go wrong between ranks, each in one sentence that says what, where, and what is allowed.

use crate::control::{Failure, FailureKind};
use thiserror::Error;

/// Why a rank cannot be placed, joined, reached or kept.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommError {
    #[error("{variable} is \"{value}\", expected {expected}")]
    Variable { variable: &'static str, value: String, expected: String },
    #[error("{present} is set, but {missing} is not; {launcher} sets both: set both or neither")]
    MissingVariable { launcher: &'static str, present: &'static str, missing: &'static str },
    #[error(
        "launchers disagree: {chosen} (which comes first) says rank {rank} of {size}, {other} says rank {other_rank} of \
         {other_size}; unset the variables of the one that did not start this process ({variables})"
    )]
    Contradiction {
        chosen: &'static str,
        rank: usize,
        size: usize,
        other: &'static str,
        other_rank: usize,
        other_size: usize,
        variables: String,
    },
    #[error("node list \"{list}\": {problem}")]
    NodeList { list: String, problem: String },
    #[error("communication was cancelled after an earlier failure")]
    Cancelled,
    #[error("a message of {length} bytes; at most {} are allowed", crate::transport::MAX_MESSAGE)]
    MessageTooLong { length: usize },
    #[error("rank {rank} sent {length} bytes where {expected} were awaited: the ranks do not run the same plan")]
    MessageLength { rank: usize, length: usize, expected: usize },
    #[error("rank {rank} is gone while messages from it are awaited")]
    Disconnected { rank: usize },
    #[error("the system refuses another thread: {reason}")]
    Thread { reason: String },
    /// The job has ended: the same sentence on all ranks.
    #[error("{}", .0.message)]
    Job(Failure),
    #[error("{reason}")]
    Closed { reason: String },
    #[error("what came is no message of this program ({reason})")]
    Malformed { reason: String },
    #[error("rank 0 was not reached within {seconds} s: {reason}")]
    Unreachable { seconds: String, reason: String },
    #[error("the ranks have not met within {seconds} s: one was not started, or ended before the others knew of it")]
    NotMet { seconds: String },
    #[error("the ranks have not met: one has ended, or messages do not reach it: {reason}")]
    Unmet { reason: String },
    #[error("rank 0 at this address belongs to another job: its cookie differs")]
    WrongCookie,
    #[error("a process on host {host} has joined with the rank of this one: two were started with the same rank")]
    RankTaken { host: String },
    #[error("rank 0 refused this rank: its {field} is {found}, that of rank 0 is {expected}; all ranks must agree")]
    Differs { field: String, expected: String, found: String },
    #[error("{length} bytes to gather; at most {} of all ranks together are allowed", crate::control::MAX_PAYLOAD)]
    PayloadTooLong { length: usize },
    #[error("cannot listen on port {port}: {reason}")]
    Listen { port: u16, reason: String },
    #[error("{reason}")]
    NoMpi { reason: String },
    #[error(
        "{launcher} starts no MPI, which ranks on CPUs need: use `mpirun -np {ranks} bessemer ...` or `bessemer launch -n {ranks} -- ...`"
    )]
    NotAnMpiLauncher { launcher: &'static str, ranks: usize },
    #[error(
        "{launcher} started {expected} processes, this one as rank {expected_rank}, but MPI sees {size}, and this one as rank {rank}: \
         the MPI library does not belong to the launcher; with Slurm use srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)"
    )]
    MpiDisagrees { launcher: &'static str, expected_rank: usize, expected: usize, rank: usize, size: usize },
    #[error("{call} failed with code {code}: {meaning}")]
    Mpi { call: &'static str, code: i32, meaning: String },
    #[error("{program} cannot be started or watched: {reason}")]
    Spawn { program: String, reason: String },
    #[error(
        "the launcher does not say where rank 0 is, and there is no MPI to ask: set {}=host:port",
        crate::launch::RENDEZVOUS
    )]
    NoRendezvous,
}

impl CommError {
    /// Whether ranks were started or named wrongly, or what carries their messages is not installed: something that whoever started
    /// them can put right.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Job(Failure { kind: FailureKind::Usage | FailureKind::Refused, .. })
                | Self::Variable { .. }
                | Self::MissingVariable { .. }
                | Self::Contradiction { .. }
                | Self::NodeList { .. }
                | Self::NoMpi { .. }
                | Self::NotAnMpiLauncher { .. }
                | Self::MpiDisagrees { .. }
                | Self::NoRendezvous
                | Self::Differs { .. }
        )
    }
}
