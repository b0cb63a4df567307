//! The ranks of a job as training sees them: who this process is, what the others say, and sums over all of them.

mod collectives;
mod pace;
mod progress;

use crate::checkpoint::hashing::{sha256_hex, sha256_of_file};
use crate::device::{DeviceKind, LocalRank, RankLink};
use crate::error::{ErrorKind, TrainError};
use bessemer_comm::CommError;
use bessemer_comm::control::{Control, Deadlines, FailureKind, Identity, Phase, Progress, Server, Stop};
use bessemer_comm::engine::{Engine, Open, note_failure};
use bessemer_comm::launch::{Placement, Rendezvous, Variables};
use bessemer_comm::mpi::{MpiLibrary, end_at_once};
use bessemer_comm::probe::Link;
use bessemer_comm::rendezvous::{LateWatch, Membership, meet};
use bessemer_data::Share;
use bessemer_ir::ops::collective::Wire;
use bessemer_ir::run::StateStore;
use bessemer_nn::Ranks;
use collectives::{OfDevices, OverEngine};
pub use pace::INPUT_BOUND;
pub(crate) use pace::Pace;
use progress::Tracker;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Most bytes that are sent to rank 0 in one piece by all ranks together.
const PIECE: usize = 64 << 20;

/// How ranks watch each other.
#[derive(Clone, Copy, Debug)]
pub struct GroupOptions {
    /// How long ranks may take to join, and how long one may be silent.
    pub deadlines: Deadlines,
    /// How long a rank waits for a sum over ranks, or for what they tell each other from the first step on, before it ends the job.
    pub collective_timeout: Duration,
    /// The same for what ranks tell each other before the first step: each opens data, reads weights and compiles for its own time.
    pub start_timeout: Duration,
    /// The state of all ranks is compared before the first step and each time that so many steps are done.
    pub verify_every: u64,
    /// Element type in which gradients travel.
    pub wire: Wire,
    /// Ends the process with an error where its device does not return although the job has failed.
    pub give_up: fn(&str),
}

/// Says why, and ends the process.
fn end_with(error: &str) {
    eprintln!("error: {error}");
    end_at_once(1);
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            deadlines: Deadlines::default(),
            collective_timeout: Duration::from_secs(600),
            start_timeout: Duration::from_secs(3600),
            verify_every: 500,
            wire: Wire::F32,
            give_up: end_with,
        }
    }
}

/// This process among the ranks of its job. A process that was started alone is a group of one.
pub struct Group(Option<Joined>);

struct Joined {
    rank: usize,
    size: usize,
    server: Option<Server>,
    tracker: Arc<Tracker>,
    carrier: Carrier,
    options: GroupOptions,
}

/// What carries sums over ranks, and what rank 0 tells the others.
enum Carrier {
    Messages(Arc<OverEngine>),
    /// The devices' own library; the control channel for what is small.
    Devices {
        peers: Arc<OfDevices>,
        local: LocalRank,
        /// Open where MPI told the address of rank 0: processes of its launcher end it in good order.
        _mpi: Option<Engine>,
    },
}

impl Joined {
    fn control(&self) -> &Control {
        &self.tracker.control
    }

    /// Tells the others of a failure of this rank, or leaves them in good order.
    ///
    /// # Errors
    /// Another rank failed or was lost.
    fn end(self, failure: Option<(FailureKind, String)>) -> Result<(), TrainError> {
        let Joined { server, tracker, carrier, .. } = self;
        if let Some((kind, text)) = failure {
            tracker.control.fail(kind, &text);
        }
        drop(carrier);
        let of_others = tracker.control.check();
        if let Ok(tracker) = Arc::try_unwrap(tracker) {
            tracker.into_control().leave();
        }
        if let Some(server) = server {
            server.close(Duration::from_secs(10));
        }
        Ok(of_others?)
    }

    /// The bytes of rank 0, which gives `Some`; few of them.
    fn bytes_of_first(&self, bytes: Option<Vec<u8>>) -> Result<Vec<u8>, CommError> {
        match &self.carrier {
            Carrier::Messages(collectives) => collectives.engine().broadcast(0, bytes),
            Carrier::Devices { peers, .. } => peers.bytes_of_first(bytes),
        }
    }
}

impl Group {
    /// The only rank.
    pub fn alone() -> Group {
        Group(None)
    }

    /// Joins the job that a launcher has started this process for, alone where there is none. Ranks on processors send messages over
    /// MPI; those on GPUs add by NCCL, and need MPI only where their launcher does not say where rank 0 is. `job` identifies what all
    /// ranks must be asked for alike; `missing` is called from time to time with the ranks that have not joined.
    ///
    /// # Errors
    /// [`TrainError::Ranks`]: no MPI, ranks that do not come or differ.
    pub fn join(
        placement: &Placement,
        variables: &Variables,
        (mpi, device): (Option<&Path>, DeviceKind),
        job: &str,
        options: GroupOptions,
        missing: impl FnMut(&[usize]),
    ) -> Result<Group, TrainError> {
        if placement.size == 1 {
            return Ok(Group::alone());
        }
        let adds_by_device = matches!(device, DeviceKind::Cuda { .. });
        if adds_by_device && matches!(placement.rendezvous, Some(Rendezvous::Address { .. })) {
            return Self::meet(None, adds_by_device, placement, job, options, missing);
        }
        let library = MpiLibrary::find(mpi, placement, variables)?;
        let of_rank = placement.clone();
        let open: Open = Box::new(move || library.start(&of_rank));
        Self::meet(Some(open), adds_by_device, placement, job, options, missing)
    }

    /// Joins a job with messages over any transport.
    ///
    /// # Errors
    /// As [`Group::join`].
    pub fn over(
        open: Open,
        placement: &Placement,
        job: &str,
        options: GroupOptions,
        missing: impl FnMut(&[usize]),
    ) -> Result<Group, TrainError> {
        Self::meet(Some(open), false, placement, job, options, missing)
    }

    fn meet(
        open: Option<Open>,
        adds_by_device: bool,
        placement: &Placement,
        job: &str,
        options: GroupOptions,
        missing: impl FnMut(&[usize]),
    ) -> Result<Group, TrainError> {
        let watch = LateWatch::new(options.deadlines.join);
        let (watched, is_alone) = (watch.clone(), Arc::new(AtomicBool::new(false)));
        let left_alone = Arc::clone(&is_alone);
        let look = move || if left_alone.load(Ordering::Acquire) { Err(CommError::Cancelled) } else { watched.check() };
        let engine = open.map(|open| Engine::start(open, Box::new(look))).transpose()?;
        let identity =
            Identity { program: program().to_owned(), recipe: sha256_hex(job.as_bytes()), ..Identity::default() };
        let met = meet(placement, identity, options.deadlines, engine.as_ref(), missing);
        // Without the others the message layer cannot end in good order.
        let Membership { server, control } = met.inspect_err(|_| is_alone.store(true, Ordering::Release))?;
        watch.set(&control);
        let tracker = Arc::new(Tracker::new(control, options.collective_timeout, options.start_timeout));
        let (rank, size) = (placement.rank, placement.size);
        let carrier = match engine {
            Some(engine) if !adds_by_device => {
                Carrier::Messages(Arc::new(OverEngine::new(engine, Arc::clone(&tracker))))
            }
            mpi => {
                let give_up = options.give_up;
                let peers = Arc::new(OfDevices { tracker: Arc::clone(&tracker), rank, size, give_up });
                let number = placement.local_rank.unwrap_or(rank);
                let local = LocalRank { number, count: placement.local_size.unwrap_or(number + 1) };
                Carrier::Devices { peers, local, _mpi: mpi }
            }
        };
        Ok(Group(Some(Joined { rank, size, server, tracker, carrier, options })))
    }

    /// Number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.0.as_ref().map_or(0, |joined| joined.rank)
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.0.as_ref().map_or(1, |joined| joined.size)
    }

    /// Whether this is rank 0, which keeps the run's folder.
    pub fn leads(&self) -> bool {
        self.rank() == 0
    }

    /// Names of the machines of all ranks; empty for one that is alone.
    pub fn hosts(&self) -> &[String] {
        self.0.as_ref().map_or(&[], |joined| joined.control().hosts())
    }

    /// The batches of this rank.
    pub fn share(&self) -> Share {
        Share { index: self.rank(), count: self.size() }
    }

    /// What the training step is built for.
    pub fn ranks(&self) -> Ranks {
        let wire = self.0.as_ref().map_or(Wire::F32, |joined| joined.options.wire);
        Ranks { count: self.size(), wire, ..Ranks::default() }
    }

    /// How the device on which steps run reaches those of the other ranks.
    pub fn link(&self) -> RankLink {
        match self.0.as_ref().map(|joined| &joined.carrier) {
            None => RankLink::Alone,
            Some(Carrier::Messages(collectives)) => RankLink::Messages(collectives.clone()),
            Some(Carrier::Devices { peers, local, .. }) => RankLink::Devices(peers.clone(), *local),
        }
    }

    /// Time that was spent waiting for sums since the last call; none where devices wait, not the host.
    pub fn take_waited(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |joined| joined.tracker.take_waited())
    }

    /// Says where this rank is, for messages of others when it is lost.
    pub fn report(&self, step: u64, phase: Phase, micro_batch: u64) {
        if let Some(joined) = &self.0 {
            joined.tracker.report(Progress { step, phase, micro_batch: micro_batch as u32, ..Progress::default() });
        }
    }

    /// What rank 0 gives, on all ranks.
    ///
    /// # Errors
    /// What `give` fails with, on rank 0; [`TrainError::Ranks`] on the others.
    pub fn from_first<T: Serialize + DeserializeOwned>(
        &self,
        give: impl FnOnce() -> Result<T, TrainError>,
    ) -> Result<T, TrainError> {
        let Some(joined) = &self.0 else { return give() };
        let given = if joined.rank == 0 { Some(give()?) } else { None };
        let bytes = joined.bytes_of_first(given.as_ref().map(encode))?;
        given.map_or_else(|| decode(&bytes), Ok)
    }

    /// What each rank gives, by rank, on all ranks; small.
    ///
    /// # Errors
    /// [`TrainError::Ranks`].
    pub fn all_gather<T: Serialize + DeserializeOwned>(&self, own: T) -> Result<Vec<T>, TrainError> {
        let Some(joined) = &self.0 else { return Ok(vec![own]) };
        joined
            .control()
            .all_gather(&encode(&own), Some(joined.tracker.limit()))?
            .iter()
            .map(|bytes| decode(bytes))
            .collect()
    }

    /// What each rank gives, by rank, on rank 0; nothing on the others. Of any size.
    ///
    /// # Errors
    /// [`TrainError::Ranks`].
    pub fn gather<T: Serialize + DeserializeOwned>(&self, own: T) -> Result<Vec<T>, TrainError> {
        let Some(joined) = &self.0 else { return Ok(vec![own]) };
        let bytes = encode(&own);
        let longest = self.all_gather(bytes.len())?.into_iter().max().unwrap_or(0);
        let (piece, limit) = (PIECE / joined.size, Some(joined.tracker.limit()));
        let mut whole = vec![Vec::new(); joined.size];
        for start in (0..longest).step_by(piece) {
            let own = &bytes[start.min(bytes.len())..(start + piece).min(bytes.len())];
            for (whole, part) in whole.iter_mut().zip(joined.control().gather(own, limit)?.unwrap_or_default()) {
                whole.extend(part);
            }
        }
        if self.leads() { whole.iter().map(|bytes| decode(bytes)).collect() } else { Ok(Vec::new()) }
    }

    /// Whether any rank says so.
    ///
    /// # Errors
    /// [`TrainError::Ranks`].
    pub fn any(&self, own: bool) -> Result<bool, TrainError> {
        Ok(self.all_gather(own)?.contains(&true))
    }

    /// # Errors
    /// Text that is not the same on all ranks; `what` names it.
    pub fn compare(&self, what: &'static str, text: &str) -> Result<(), TrainError> {
        let texts = self.all_gather(text.to_owned())?;
        match texts.iter().position(|other| *other != texts[0]) {
            None => Ok(()),
            Some(rank) => {
                let (first, other) = (texts[0].clone(), texts[rank].clone());
                Err(TrainError::RanksDiffer { what, rank, first, other })
            }
        }
    }

    /// Gives all ranks the state of rank 0.
    ///
    /// # Errors
    /// [`TrainError::Ranks`].
    pub fn share_state(&self, state: &dyn StateStore) -> Result<(), TrainError> {
        let Some(joined) = &self.0 else { return Ok(()) };
        for number in self.different_tensors(state)? {
            let tensor = &state.layout().tensors()[number];
            if state.take_from_first(&tensor.name)? {
                continue;
            }
            let mut bytes = vec![0; tensor.ty.bytes()];
            state.read(&tensor.name, &mut bytes)?;
            let given = (joined.rank == 0).then(|| bytes.clone());
            state.write(&tensor.name, &joined.bytes_of_first(given)?)?;
        }
        Ok(())
    }

    /// Compares the state of all ranks that `is_shared`, if as many steps are done that it is due.
    ///
    /// # Errors
    /// [`TrainError::StateDiffers`].
    pub fn verify_state(
        &self,
        step: u64,
        state: &dyn StateStore,
        is_shared: impl Fn(&str) -> bool,
    ) -> Result<(), TrainError> {
        match &self.0 {
            Some(joined) if step.is_multiple_of(joined.options.verify_every) => {}
            _ => return Ok(()),
        }
        let name = |number: usize| &state.layout().tensors()[number].name;
        match self.different_tensors(state)?.into_iter().map(name).find(|name| is_shared(name)) {
            None => Ok(()),
            Some(tensor) => Err(TrainError::StateDiffers { step, tensor: tensor.clone() }),
        }
    }

    /// Numbers of the tensors that are not the same on all ranks.
    fn different_tensors(&self, state: &dyn StateStore) -> Result<Vec<usize>, TrainError> {
        let mut own = Vec::new();
        let mut bytes = Vec::new();
        for tensor in state.layout().tensors() {
            bytes.resize(tensor.ty.bytes(), 0);
            state.read(&tensor.name, &mut bytes)?;
            own.push(collectives::hash(&bytes));
        }
        let all = self.all_gather(own)?;
        Ok((0..all[0].len()).filter(|&number| all.iter().any(|rank| rank[number] != all[0][number])).collect())
    }

    /// Measures the link between the first two ranks, which takes about 0.3 s. Rank 0 gets the result.
    ///
    /// # Errors
    /// [`TrainError::Ranks`].
    pub fn probe_link(&self) -> Result<Option<Link>, TrainError> {
        match self.0.as_ref().map(|joined| &joined.carrier) {
            Some(Carrier::Messages(collectives)) => Ok(collectives.engine().probe([0, 1])?),
            _ => Ok(None),
        }
    }

    /// Tells the other ranks that this one wishes to stop, for where they do not learn of it by a step.
    pub fn wish_stop(&self) {
        if let Some(joined) = &self.0 {
            joined.control().wish_stop(Stop::AfterStep);
        }
    }

    /// Whether another rank has said so.
    pub fn stop_is_wished(&self) -> bool {
        self.0.as_ref().is_some_and(|joined| joined.control().stop_wished().is_some())
    }

    /// Ends the membership: in good order, or by telling the others of an error of this rank.
    ///
    /// # Errors
    /// [`TrainError::Ranks`] where this rank has none and another failed or was lost meanwhile.
    pub fn leave(mut self, error: Option<&TrainError>) -> Result<(), TrainError> {
        let Some(joined) = self.0.take() else { return Ok(()) };
        // An error that came from the others is known to them.
        let own = error.filter(|error| !error.is_of_other_rank()).map(|error| {
            let kind = if error.kind() == ErrorKind::Usage { FailureKind::Usage } else { FailureKind::Error };
            (kind, error.to_string())
        });
        if error.is_some() && matches!(joined.carrier, Carrier::Devices { .. }) {
            note_failure();
        }
        let of_others = joined.end(own);
        if error.is_some() { Ok(()) } else { of_others }
    }

    /// Ends the membership before any work is done, as these ranks cannot do what they are asked for: others that have not found that
    /// yet end as after an error of their own.
    pub fn refuse(mut self, reason: &str) {
        if let Some(joined) = self.0.take() {
            let _ = joined.end(Some((FailureKind::Usage, reason.to_owned())));
        }
    }
}

impl Drop for Group {
    /// Behind an error on the way, or a panic: others must not wait for this rank.
    fn drop(&mut self) {
        if let Some(joined) = self.0.take() {
            let _ = joined.end(Some((FailureKind::Error, "it ended without leaving the job".to_owned())));
        }
    }
}

/// This program: its version, and a hash of its file, in which two builds of one version differ.
fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        // The file that runs, even if another one has taken its name meanwhile.
        let file = if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() };
        let hash = file.and_then(|file| sha256_of_file(&file));
        let hash =
            hash.map_or_else(|error| format!("a file that cannot be read: {error}"), |hash| format!("SHA-256 {hash}"));
        format!("{} ({hash})", env!("CARGO_PKG_VERSION"))
    })
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).expect("plain data has a form in bytes")
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, TrainError> {
    postcard::from_bytes(bytes)
        .map_err(|error| CommError::Malformed { reason: format!("{error}, in {} bytes", bytes.len()) }.into())
}
