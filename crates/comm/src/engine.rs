//! The communication thread of a rank: it alone owns the transport, and runs collectives while kernels compute.

use crate::CommError;
use crate::exchange::AllGather;
use crate::probe::{Link, LinkProbe};
use crate::reduce::{AllReduce, Reduction, Wire};
use crate::transport::{Operation, Pause, Step, Transport, complete};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the reason of a failure of messages is waited for, and the end of the thread where a job has failed.
const CAUSE: Duration = Duration::from_secs(2);

/// Between looks at the job while a collective is waited for.
const LOOK: Duration = Duration::from_millis(200);

/// Between calls of the transport while nothing is under way.
const IDLE: Duration = Duration::from_millis(1);

/// Whether messages of this process failed.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Whether messages of this process failed, so that their transport was not ended in good order, or still waits for a rank that is lost.
pub fn has_failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}

/// Notes that what carries sums between ranks failed, where that is no transport of this crate.
pub fn note_failure() {
    FAILED.store(true, Ordering::Relaxed);
}

/// Opens the transport in the communication thread.
pub type Open = Box<dyn FnOnce() -> Result<Box<dyn Transport>, CommError> + Send>;
/// Asked while messages are awaited; an error, such as a rank lost, ends all that is under way.
pub type SharedWatch = Box<dyn Fn() -> Result<(), CommError> + Send + Sync>;

/// Collectives of one rank. All ranks start the same ones in the same order.
pub struct Engine {
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    watch: Arc<SharedWatch>,
    rank: usize,
    size: usize,
}

/// A collective that was started.
#[must_use = "the result is taken by waiting"]
pub struct Started<T>(Receiver<Result<T, CommError>>);

enum Command {
    AllReduce(AllReduce, Sender<Result<AllReduce, CommError>>),
    AllGather(AllGather, Sender<Result<AllGather, CommError>>),
    Probe(LinkProbe, Sender<Result<LinkProbe, CommError>>),
}

impl Engine {
    /// Starts the thread and opens the transport in it. A transport may wait for all ranks while it is opened: where `watch` gives an error
    /// meanwhile, the thread is left behind.
    ///
    /// # Errors
    /// Those of `open` and of `watch`.
    pub fn start(open: Open, watch: SharedWatch) -> Result<Engine, CommError> {
        let (commands, received) = channel();
        let (opened, is_open) = channel();
        let watch = Arc::new(watch);
        let watched = Arc::clone(&watch);
        let run = move || match open() {
            Ok(mut transport) => {
                let _ = opened.send(Ok((transport.rank(), transport.size())));
                serve(transport.as_mut(), &received, &watched);
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        let thread = std::thread::Builder::new().name("communication".to_owned()).spawn(run);
        let thread = thread.map_err(|error| CommError::Thread { reason: error.to_string() })?;
        let is_open = Started(is_open);
        let (rank, size) = loop {
            if let Some(opened) = is_open.wait_within(LOOK)? {
                break opened;
            }
            watch().inspect_err(|_| note_failure())?;
        };
        Ok(Engine { commands: Some(commands), thread: Some(thread), watch, rank, size })
    }

    /// Number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Starts to reduce tensors as one message; they are copied. [`AllReduce::finish`] writes the result.
    pub fn all_reduce(&self, tensors: &[&[f32]], wire: Wire, reduction: Reduction) -> Started<AllReduce> {
        let operation = AllReduce::new(tensors, wire, reduction, self.rank, self.size);
        self.command(|reply| Command::AllReduce(operation, reply))
    }

    /// Gives `bytes` to all ranks and waits for theirs, by rank.
    ///
    /// # Errors
    /// The message layer fails, or a rank was lost.
    pub fn all_gather(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, CommError> {
        let operation = AllGather::new(bytes, self.size);
        Ok(self.watched(self.command(|reply| Command::AllGather(operation, reply)))?.into_parts())
    }

    /// The bytes of rank `root`, which gives `Some`; the others give `None`.
    ///
    /// # Errors
    /// The message layer fails, or a rank was lost.
    pub fn broadcast(&self, root: usize, bytes: Option<Vec<u8>>) -> Result<Vec<u8>, CommError> {
        let operation = AllGather::broadcast(root, bytes);
        let mut parts = self.watched(self.command(|reply| Command::AllGather(operation, reply)))?.into_parts();
        Ok(parts.swap_remove(0))
    }

    /// Measures the link between two ranks for about 0.3 s. The first of them gets the result, the others `None`.
    ///
    /// # Errors
    /// The message layer fails, or a rank was lost.
    pub fn probe(&self, pair: [usize; 2]) -> Result<Option<Link>, CommError> {
        Ok(self.watched(self.command(|reply| Command::Probe(LinkProbe::new(pair), reply)))?.link())
    }

    /// The result of what was started, or the failure of the job: where a rank is lost, a transport may not return.
    fn watched<T>(&self, started: Started<T>) -> Result<T, CommError> {
        loop {
            if let Some(done) = started.wait_within(LOOK)? {
                return Ok(done);
            }
            (self.watch)()?;
        }
    }

    fn command<T>(&self, command: impl FnOnce(Sender<Result<T, CommError>>) -> Command) -> Started<T> {
        let (reply, result) = channel();
        if let Some(commands) = &self.commands {
            // A thread that has ended drops the reply, which the wait reports.
            let _ = commands.send(command(reply));
        }
        Started(result)
    }
}

impl<T> Started<T> {
    /// Waits until it is done.
    ///
    /// # Errors
    /// The message layer fails, or a rank was lost.
    pub fn wait(self) -> Result<T, CommError> {
        self.0.recv().unwrap_or(Err(CommError::Cancelled))
    }

    /// The same for so long; `None` where it is not done then.
    ///
    /// # Errors
    /// As [`Started::wait`].
    pub fn wait_within(&self, limit: Duration) -> Result<Option<T>, CommError> {
        match self.0.recv_timeout(limit) {
            Ok(result) => result.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(CommError::Cancelled),
        }
    }
}

impl Drop for Engine {
    /// Ends the thread when what was started is done. Of a job that has failed it is left behind where MPI does not return.
    fn drop(&mut self) {
        self.commands = None;
        let Some(thread) = self.thread.take() else { return };
        let begun = Instant::now();
        while !thread.is_finished() {
            if begun.elapsed() > CAUSE && (self.watch)().is_err() {
                FAILED.store(true, Ordering::Relaxed);
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = thread.join();
    }
}

impl Command {
    fn operation(&mut self) -> &mut dyn Operation {
        match self {
            Command::AllReduce(operation, _) => operation,
            Command::AllGather(operation, _) => operation,
            Command::Probe(operation, _) => operation,
        }
    }

    /// Answers, if someone still waits.
    fn reply(self, result: Result<(), CommError>) {
        match self {
            Command::AllReduce(operation, reply) => drop(reply.send(result.map(|()| operation))),
            Command::AllGather(operation, reply) => drop(reply.send(result.map(|()| operation))),
            Command::Probe(operation, reply) => drop(reply.send(result.map(|()| operation))),
        }
    }
}

/// Runs commands until the engine is dropped. After the first error everything is answered with it.
fn serve(transport: &mut dyn Transport, commands: &Receiver<Command>, watch: &SharedWatch) {
    let mut sequence = 0_u32;
    let mut active: Vec<Command> = Vec::new();
    let mut failure: Option<CommError> = None;
    let mut pause = Pause::default();
    loop {
        let command = match active.is_empty() {
            true if failure.is_some() => commands.recv().map_err(|_| TryRecvError::Disconnected),
            true => commands.recv_timeout(IDLE).map_err(|error| match error {
                RecvTimeoutError::Timeout => TryRecvError::Empty,
                RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
            }),
            false => commands.try_recv(),
        };
        match command {
            Ok(command) if failure.is_some() => {
                command.reply(Err(failure.clone().expect("there is a failure")));
                continue;
            }
            Ok(mut command) => {
                let posted = command.operation().post(transport, sequence);
                sequence = sequence.wrapping_add(1);
                active.push(command);
                failure = posted.err();
                pause.reset();
            }
            Err(TryRecvError::Disconnected) if active.is_empty() => {
                leave(transport, sequence, watch);
                return;
            }
            // Other ranks may wait for what the transport has kept of sends that are complete.
            Err(TryRecvError::Empty) if active.is_empty() => transport.progress(),
            Err(_) => {}
        }
        let (mut at, mut advanced) = (0, false);
        while failure.is_none() && at < active.len() {
            match active[at].operation().poll(transport) {
                Ok(Step::Done) => {
                    active.remove(at).reply(Ok(()));
                    advanced = true;
                }
                Ok(step) => {
                    advanced |= step == Step::Advanced;
                    at += 1;
                }
                Err(error) => failure = Some(error),
            }
        }
        if advanced {
            pause.reset();
        } else if failure.is_none() && !active.is_empty() {
            failure = watch().err();
            pause.sleep();
        }
        if let Some(error) = &mut failure {
            if let CommError::Mpi { .. } | CommError::Disconnected { .. } = error {
                *error = cause(error, watch);
            }
            FAILED.store(true, Ordering::Relaxed);
            transport.cancel();
            for command in active.drain(..) {
                command.reply(Err(error.clone()));
            }
        }
    }
}

/// Waits until all ranks have ended what they had started, as a message layer may still be needed by others, and must not end in good
/// order where a rank was lost, for which it would wait.
fn leave(transport: &mut dyn Transport, sequence: u32, watch: &SharedWatch) {
    if watch().is_err() {
        FAILED.store(true, Ordering::Relaxed);
        transport.cancel();
        return;
    }
    let mut last = AllGather::last(transport.size());
    if complete(&mut last, transport, sequence, watch).is_err() {
        FAILED.store(true, Ordering::Relaxed);
    }
}

/// Messages may fail before the control channel tells of the rank that ended, which is why they fail.
fn cause(error: &CommError, watch: &SharedWatch) -> CommError {
    let begun = Instant::now();
    while begun.elapsed() < CAUSE {
        if let Err(cause) = watch() {
            return cause;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    error.clone()
}
