//! MPI as a message layer: found and opened at run time, whichever library the launcher belongs to.
//!
//! This is the only module of the crate with `unsafe`: foreign functions, what runs in a child before it becomes a program, and the end
//! of a process that cannot wait for MPI.

#![allow(unsafe_code, reason = "foreign functions")]

mod api;
mod child;
mod end;
mod find;
mod transport;

pub use child::die_with_this_thread;
pub use end::end_at_once;
pub use find::MpiLibrary;

/// Libraries that share one binary interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Open MPI 4 and 5.
    OpenMpi,
    /// MPICH, Intel MPI, MVAPICH, Cray MPICH.
    Mpich,
    /// Any library that follows the standard ABI of MPI 5.
    StandardAbi,
}

impl Family {
    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            Family::OpenMpi => "Open MPI",
            Family::Mpich => "MPICH",
            Family::StandardAbi => "MPI with the standard ABI",
        }
    }
}
