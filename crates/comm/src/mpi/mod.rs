//! MPI as a message layer: found and opened at run time, whichever library the launcher belongs to.
//!
//! But for one that sets variables, this is the only module of the crate with `unsafe`: foreign functions, what runs in a child before it becomes a program, and the end
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

use crate::launch::Variables;

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

/// Variables by which libraries of MPI send over this interface where they send by TCP, whatever their family, but for those that
/// contradict `variables`, which are set. They count where each process is started by itself: `mpirun` and `mpiexec` choose for theirs.
pub fn interface_variables(interface: &str, variables: &Variables) -> Vec<(&'static str, String)> {
    let open_mpi =
        Some("OMPI_MCA_btl_tcp_if_include").filter(|_| !variables.contains_key("OMPI_MCA_btl_tcp_if_exclude"));
    // Of libfabric, on which the family of MPICH stands.
    let names = open_mpi.into_iter().chain(["FI_TCP_IFACE"]);
    names.map(|name| (name, interface.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_asked_for_unless_another_is_forbidden() {
        let variables = |names: &[&str]| {
            let set = names.iter().map(|name| ((*name).to_owned(), "lo".to_owned())).collect();
            interface_variables("eth1", &set)
        };
        let include = ("OMPI_MCA_btl_tcp_if_include", "eth1".to_owned());
        assert_eq!(variables(&[]), [include, ("FI_TCP_IFACE", "eth1".to_owned())]);
        assert_eq!(variables(&["OMPI_MCA_btl_tcp_if_exclude"]), [("FI_TCP_IFACE", "eth1".to_owned())]);
    }
}
