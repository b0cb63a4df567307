//! Sums over the ranks of a job: NCCL on a stream of its own, and a thread that ends them where the job has failed.

use super::ledger::Allocation;
use super::{Gpu, failed, locked};
use crate::driver::{Block, Context, Event, Flag, Stream};
use crate::error::GpuError;
use crate::loader::Libraries;
use crate::nccl::{Communicator, Nccl, Reduction, UniqueId};
use bessemer_ir::run::{Peers, RunError};
use bessemer_ir::{DType, NodeId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between looks at the job and the communicator.
const LOOK: Duration = Duration::from_millis(50);
/// How long the reason of a failure of NCCL is waited for: it may see before the job that a rank has ended.
const CAUSE: Duration = Duration::from_secs(2);
/// How long calls of the device may take to return when their sums were ended.
const RETURN: Duration = Duration::from_secs(5);

/// This rank among those whose devices add.
pub(super) struct Sums {
    stream: Stream,
    watched: Arc<Watched>,
    watcher: Option<JoinHandle<()>>,
    /// Dropped to end the watcher.
    end: Option<mpsc::Sender<()>>,
}

/// What the watcher knows.
struct Watched {
    communicator: Communicator,
    peers: Arc<dyn Peers>,
    /// Read by kernels behind each sum that was waited for.
    lost: Flag,
    /// The communicator was ended.
    has_failed: AtomicBool,
    /// Why, where it is no failure of the job.
    own_failure: Mutex<Option<String>>,
    /// Calls that may wait for the device.
    waiting: AtomicUsize,
}

/// Messages by the nodes that send them.
pub(super) type Exchanges = HashMap<NodeId, Arc<Exchange>>;

/// A message on its way.
pub(super) struct Exchange {
    message: Block,
    ty: DType,
    packed: Event,
    added: Event,
}

impl Sums {
    /// Joins the others, and waits for them.
    ///
    /// # Errors
    /// [`RunError::Ranks`]; NCCL is not there or does not work.
    pub(super) fn join(libraries: &Libraries, context: &Context, peers: Arc<dyn Peers>) -> Result<Sums, RunError> {
        let nccl = Nccl::open(libraries);
        let id = match (&nccl, peers.rank()) {
            (Ok(nccl), 0) => Some(nccl.unique_id().map_err(failed)?.0.to_vec()),
            _ => None,
        };
        let nccl = nccl.map_err(failed)?;
        let id = peers.of_first(id)?;
        let malformed = |_| failed(GpuError::Communicator(format!("rank 0 gave an id of {} bytes", id.len())));
        let id = UniqueId(id.as_slice().try_into().map_err(malformed)?);
        let communicator = Communicator::join_while(&nccl, context, id, peers.rank(), peers.ranks(), || peers.check())?;
        let watched = Arc::new(Watched {
            communicator,
            peers,
            lost: context.flag().map_err(failed)?,
            has_failed: AtomicBool::new(false),
            own_failure: Mutex::default(),
            waiting: AtomicUsize::new(0),
        });
        let (end, ended) = mpsc::channel();
        let of_thread = watched.clone();
        let watch = move || of_thread.watch(&ended);
        let watcher = std::thread::Builder::new().name("sums over ranks".to_owned()).spawn(watch);
        let watcher = watcher.map_err(|error| failed(GpuError::Communicator(format!("no thread: {error}"))))?;
        let stream = context.stream().map_err(failed)?;
        Ok(Sums { stream, watched, watcher: Some(watcher), end: Some(end) })
    }

    pub(super) fn ranks(&self) -> usize {
        self.watched.peers.ranks()
    }

    pub(super) fn peers(&self) -> &dyn Peers {
        &*self.watched.peers
    }

    /// What kernels look at behind each sum.
    pub(super) fn lost(&self) -> Block {
        self.watched.lost.block()
    }

    /// Whether the sums were ended; results since then have no meaning.
    pub(super) fn has_failed(&self) -> bool {
        self.watched.has_failed.load(Ordering::SeqCst)
    }

    /// Adds a message, which was packed by the work that `main` was given so far, in place.
    pub(super) fn start(&self, main: &Stream, exchange: &Exchange) -> Result<(), GpuError> {
        main.record(&exchange.packed)?;
        self.stream.wait(&exchange.packed)?;
        let Exchange { message, ty, added, .. } = exchange;
        self.watched.communicator.all_reduce(&self.stream, message, message, *ty, Reduction::Sum)?;
        self.stream.record(added)
    }

    /// Replaces a block of `main` by that of rank 0.
    pub(super) fn take_from_first(&self, main: &Stream, block: &Block) -> Result<(), GpuError> {
        self.watched.communicator.broadcast(main, block, DType::U8, 0)
    }
}

impl Exchange {
    /// One for each node that sends a message, with the message's bytes and the type of its elements, in `messages`, which is there if
    /// one does.
    pub(super) fn all(
        context: &Context,
        sent: &[(NodeId, usize, DType)],
        messages: Option<&Allocation>,
        alignment: usize,
    ) -> Result<Exchanges, GpuError> {
        let mut at = 0;
        let exchange = |&(id, bytes, ty): &(NodeId, usize, DType)| {
            let message = messages.expect("there is memory for messages").block(at, bytes)?;
            at += bytes.next_multiple_of(alignment);
            Ok((id, Arc::new(Exchange { message, ty, packed: context.event()?, added: context.event()? })))
        };
        sent.iter().map(exchange).collect()
    }

    pub(super) fn message(&self) -> &Block {
        &self.message
    }

    /// Lets work that `main` is given from now on wait for the sum.
    pub(super) fn wait(&self, main: &Stream) -> Result<(), GpuError> {
        main.wait(&self.added)
    }
}

impl Gpu {
    /// Makes calls that may wait for sums over ranks. Where the job fails meanwhile, that is the error.
    pub(super) fn with_ranks<T>(&self, work: impl FnOnce() -> Result<T, RunError>) -> Result<T, RunError> {
        self.has_ranks()?;
        let result = self.waiting_for_ranks(work);
        self.has_ranks()?;
        result
    }

    /// Makes calls that may wait for sums over ranks, which end where the job fails meanwhile.
    pub(super) fn waiting_for_ranks<T>(&self, work: impl FnOnce() -> T) -> T {
        let Some(sums) = &self.sums else { return work() };
        sums.watched.waiting.fetch_add(1, Ordering::SeqCst);
        let result = work();
        sums.watched.waiting.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// # Errors
    /// Why sums over ranks were ended.
    pub(super) fn has_ranks(&self) -> Result<(), RunError> {
        self.sums.as_ref().map_or(Ok(()), |sums| sums.watched.failure())
    }
}

impl Watched {
    /// # Errors
    /// Why the sums were ended.
    fn failure(&self) -> Result<(), RunError> {
        if !self.has_failed.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.peers.check()?;
        let own = locked(&self.own_failure).clone();
        Err(failed(GpuError::Communicator(own.unwrap_or_else(|| "the sums over ranks were ended".to_owned()))))
    }

    /// Until `ended` says so, or something fails.
    fn watch(self: &Arc<Self>, ended: &mpsc::Receiver<()>) {
        loop {
            match ended.recv_timeout(LOOK) {
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
            if self.peers.check().is_err() {
                break;
            }
            if let Err(error) = self.communicator.check() {
                let begun = Instant::now();
                while self.peers.check().is_ok() && begun.elapsed() < CAUSE {
                    std::thread::sleep(LOOK);
                }
                *locked(&self.own_failure) = Some(error.to_string());
                break;
            }
        }
        // Kernels that sums keep waiting go on when these end: they must find the flag, and then the host the failure.
        self.has_failed.store(true, Ordering::SeqCst);
        self.lost.raise();
        // The call itself may not return.
        let aborted = Arc::clone(self);
        let abort = std::thread::spawn(move || aborted.communicator.abort());
        let begun = Instant::now();
        let is_waiting = || self.waiting.load(Ordering::SeqCst) > 0;
        while (is_waiting() || !abort.is_finished()) && begun.elapsed() < RETURN {
            std::thread::sleep(Duration::from_millis(1));
        }
        if is_waiting() {
            let error = self.failure().expect_err("it was stored above");
            self.peers.give_up(&error);
        }
    }
}

impl Drop for Sums {
    fn drop(&mut self) {
        self.end = None;
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}
