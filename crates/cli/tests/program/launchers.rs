//! The MPIs of this machine.

use bessemer_comm::mpi::Family;
use bessemer_comm::spawn::MpiLauncher;
use std::io::Write;

/// The launchers that there are, by the names of `--mpi`; a line for each that is missing.
pub(crate) fn launchers() -> Vec<(&'static str, MpiLauncher)> {
    let find = |(name, family): (&'static str, Family)| {
        let found = MpiLauncher::find(&std::env::var_os("PATH").unwrap_or_default(), Some(family));
        if let Err(error) = &found {
            // The test harness keeps what is printed by its macros.
            let line = format!("skipped: ranks of {}: {error}\n", family.name());
            std::io::stderr().write_all(line.as_bytes()).unwrap();
        }
        Some((name, found.ok()?))
    };
    [("openmpi", Family::OpenMpi), ("mpich", Family::Mpich)].into_iter().filter_map(find).collect()
}
