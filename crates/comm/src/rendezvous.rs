//! How the ranks of a job find rank 0's control channel.

use crate::CommError;
use crate::control::{Control, Deadlines, Identity, Job, Server, Watcher, listen};
use crate::engine::Engine;
use crate::launch::{Placement, Rendezvous};
use crate::net::interfaces;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What rank 0 sends to the others through MPI.
#[derive(Serialize, Deserialize)]
struct Announcement {
    cookie: String,
    port: u16,
    /// Of all interfaces, those of other machines' networks before loopback.
    addresses: Vec<String>,
}

/// A rank's place in a job. Rank 0 has the server, which it closes when it has left.
pub struct Membership {
    /// The server of the control channel, on rank 0.
    pub server: Option<Server>,
    /// This rank's end of it.
    pub control: Control,
}

/// Joins the control channel of the job, on rank 0 after starting it: at the address that the launcher gives, or at one that rank 0
/// sends through `engine`. `missing` is called from time to time with the ranks that have not joined.
///
/// # Errors
/// Rank 0 cannot listen, there is no engine where MPI carries the address, or those of [`Control::join`].
pub fn meet(
    placement: &Placement,
    identity: Identity,
    deadlines: Deadlines,
    engine: Option<&Engine>,
    missing: impl FnMut(&[usize]),
) -> Result<Membership, CommError> {
    let job = |cookie: String| Job { cookie, size: placement.size, identity, deadlines };
    let leads = placement.rank == 0;
    let (server, job, addresses) = match &placement.rendezvous {
        Some(Rendezvous::Address { host, port, cookie }) => {
            let job = job(cookie.clone());
            let server = leads.then(|| Server::start(listen(host, *port)?, &job)).transpose()?;
            (server, job, vec![(host.clone(), *port)])
        }
        Some(Rendezvous::Mpi) | None => {
            let engine = engine.ok_or(CommError::NoRendezvous)?;
            // A listener without its server holds the port until the cookie is known to all.
            let listener = leads.then(|| listen("", 0)).transpose()?;
            let announced = listener.as_ref().map(|listener| {
                let port = listener.local_addr().map_or(0, |address| address.port());
                let addresses = interfaces().into_iter().map(|(_, address)| address.to_string()).collect();
                let age = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
                let announcement = Announcement { cookie: format!("{} {age}", std::process::id()), port, addresses };
                serde_json::to_vec(&announcement).expect("it is plain data")
            });
            let bytes = engine.broadcast(0, announced).map_err(|error| match error {
                CommError::Mpi { .. } => CommError::Unmet { reason: error.to_string() },
                other => other,
            })?;
            let Announcement { cookie, port, addresses } =
                serde_json::from_slice(&bytes).map_err(|error| CommError::Malformed { reason: error.to_string() })?;
            let job = job(cookie);
            let server = listener.map(|listener| Server::start(listener, &job)).transpose()?;
            (server, job, addresses.into_iter().map(|address| (address, port)).collect())
        }
    };
    let control = Control::join(&job, placement.rank, &addresses, missing)?;
    Ok(Membership { server, control })
}

/// Asks a control channel that exists some time after the engine which carries its address, and until then whether there is time left.
#[derive(Clone)]
pub struct LateWatch {
    watcher: Arc<OnceLock<Watcher>>,
    begun: Instant,
    limit: Duration,
}

impl LateWatch {
    /// Ranks must have met within `limit` from now on.
    pub fn new(limit: Duration) -> LateWatch {
        LateWatch { watcher: Arc::default(), begun: Instant::now(), limit }
    }

    /// From now on this control channel is asked.
    pub fn set(&self, control: &Control) {
        // A second channel of one process would watch the same job.
        let _ = self.watcher.set(control.watcher());
    }

    /// For [`Engine::start`].
    ///
    /// # Errors
    /// The job has failed, or its ranks have not met.
    pub fn check(&self) -> Result<(), CommError> {
        match self.watcher.get() {
            Some(watcher) => watcher.check(),
            None if self.begun.elapsed() > self.limit => {
                Err(CommError::NotMet { seconds: self.limit.as_secs_f64().to_string() })
            }
            None => Ok(()),
        }
    }
}
