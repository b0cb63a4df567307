//! A rank's end of the control channel.

use super::Job;
use super::message::{self, Failure, FailureKind, FromRank, Hello, MAX_PAYLOAD, Progress, Refusal, Stop, ToRank};
use crate::CommError;
use std::collections::BTreeMap;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long one address may take to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between attempts to connect.
const RETRY: Duration = Duration::from_millis(100);
/// How long the server may take to confirm a failure or a goodbye.
const GOODBYE: Duration = Duration::from_secs(2);

/// One rank's membership of a job. Dropping it without [`leave`](Control::leave) makes this rank lost to the others.
pub struct Control {
    shared: Arc<Shared>,
    frames: Option<Sender<Vec<u8>>>,
    threads: Vec<JoinHandle<()>>,
    stream: TcpStream,
    rank: usize,
    hosts: Vec<String>,
    next_exchange: Mutex<u64>,
}

/// Knows whether the job goes on; may be given to other threads.
#[derive(Clone)]
pub struct Watcher(Arc<Shared>);

struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
    failed: AtomicBool,
}

#[derive(Default)]
struct Inner {
    /// Anything has come from the server.
    heard: bool,
    hosts: Option<Vec<String>>,
    missing: Option<Vec<usize>>,
    failure: Option<CommError>,
    /// The failure came from the server, so all ranks learn of it.
    confirmed: bool,
    stop: Option<Stop>,
    gathered: BTreeMap<u64, (Vec<usize>, Vec<u8>)>,
    progress: Progress,
    server_progress: Progress,
    server_host: Option<String>,
    last_heard: Option<Instant>,
    leaving: bool,
    /// The reader has ended.
    closed: bool,
}

impl Control {
    /// Joins the job at the first of these addresses (`(host, port)` of rank 0) that serves it, and waits until all ranks have.
    /// `missing` is called from time to time with the ranks that have not joined.
    ///
    /// # Errors
    /// Rank 0 is not reached in time, ranks are missing when the time is over, this rank is refused, or another one fails.
    pub fn join(
        job: &Job,
        rank: usize,
        addresses: &[(String, u16)],
        mut missing: impl FnMut(&[usize]),
    ) -> Result<Control, CommError> {
        let deadline = Instant::now() + job.deadlines.join;
        let hello = job.hello(rank);
        loop {
            let mut reason = "no address is known".to_owned();
            for (host, port) in addresses {
                let stream = match connect(host, *port, deadline) {
                    Ok(stream) => stream,
                    Err(error) => {
                        reason = format!("{host}:{port}: {error}");
                        continue;
                    }
                };
                let mut control = Control::over(stream, hello.clone(), job)?;
                match control.wait_for_welcome(&mut missing) {
                    Ok(hosts) => {
                        control.hosts = hosts;
                        return Ok(control);
                    }
                    // Another job, or another program, uses this address on this machine.
                    Err(error) if error == CommError::WrongCookie && addresses.len() > 1 => reason = error.to_string(),
                    Err(error) if control.shared.lock().heard => return Err(error),
                    Err(error) => reason = error.to_string(),
                }
            }
            if Instant::now() >= deadline {
                let seconds = job.deadlines.join.as_secs_f64();
                return Err(CommError::Unreachable { seconds: seconds.to_string(), reason });
            }
            std::thread::sleep(RETRY.min(deadline.saturating_duration_since(Instant::now())));
        }
    }

    fn over(stream: TcpStream, hello: Hello, job: &Job) -> Result<Control, CommError> {
        let closed = |error: std::io::Error| CommError::Closed { reason: error.to_string() };
        stream.set_nodelay(true).map_err(closed)?;
        stream.set_read_timeout(Some(job.deadlines.peer)).map_err(closed)?;
        stream.set_write_timeout(Some(job.deadlines.peer)).map_err(closed)?;
        let reading = stream.try_clone().map_err(closed)?;
        let mut writing = stream.try_clone().map_err(closed)?;
        let inner = Inner { last_heard: Some(Instant::now()), ..Inner::default() };
        let shared =
            Arc::new(Shared { inner: Mutex::new(inner), changed: Condvar::new(), failed: AtomicBool::new(false) });
        let (frames, queue) = channel();
        let rank = hello.rank;
        let _ = frames.send(message::frame(&FromRank::Hello(hello), &[]));
        let (reader, writer, beat) = (shared.clone(), shared.clone(), job.deadlines.beat);
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
            thread.map_err(|error| CommError::Thread { reason: error.to_string() })
        };
        let read = spawn("control reader", Box::new(move || read(&reader, reading)))?;
        let write = spawn("heartbeat", Box::new(move || write(&writer, &mut writing, &queue, beat)))?;
        Ok(Control {
            shared,
            frames: Some(frames),
            threads: vec![read, write],
            stream,
            rank,
            hosts: Vec::new(),
            next_exchange: Mutex::new(0),
        })
    }

    fn wait_for_welcome(&self, missing: &mut impl FnMut(&[usize])) -> Result<Vec<String>, CommError> {
        let mut inner = self.shared.lock();
        loop {
            // A rank that was welcome is a member, and learns of the failure of another as members do.
            if let Some(hosts) = inner.hosts.take() {
                return Ok(hosts);
            }
            if let Some(error) = &inner.failure {
                return Err(error.clone());
            }
            if let Some(ranks) = inner.missing.take() {
                missing(&ranks);
            }
            inner = self.shared.wait(inner);
        }
    }

    /// Number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.hosts.len()
    }

    /// Names of the ranks' machines.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// This machine's address towards rank 0.
    pub fn local_address(&self) -> Option<IpAddr> {
        self.stream.local_addr().ok().map(|address| address.ip())
    }

    /// Fails once the job has failed; cheap enough for every poll of a wait.
    ///
    /// # Errors
    /// The first failure that this rank learnt of.
    pub fn check(&self) -> Result<(), CommError> {
        self.shared.check()
    }

    /// The same question for other threads.
    pub fn watcher(&self) -> Watcher {
        Watcher(self.shared.clone())
    }

    /// What the next heartbeats say of this rank.
    pub fn report(&self, progress: Progress) {
        self.shared.lock().progress = progress;
    }

    /// Ends the job on all ranks with the error of this one, which is of the kind `Error` or `Usage`. Returns when rank 0 has told
    /// the others, or after 2 s.
    pub fn fail(&self, kind: FailureKind, error: &str) {
        self.send(&FromRank::Failed { kind, message: error.to_owned() }, &[]);
        let own = Failure {
            kind,
            ranks: vec![self.rank],
            message: format!("rank {} (host {}) failed: {error}", self.rank, crate::net::host_name()),
        };
        self.shared.fail(CommError::Job(own));
        let inner = self.shared.lock();
        let unconfirmed = |inner: &mut Inner| !inner.confirmed && !inner.closed;
        drop(self.shared.changed.wait_timeout_while(inner, GOODBYE, unconfirmed));
    }

    /// Ends the job on all ranks, because this one has waited so long for the all-reduce that `progress` shows. The message says who
    /// has not begun it.
    pub fn stuck(&self, progress: Progress, waited: Duration) -> CommError {
        self.send(&FromRank::Stuck { progress, seconds: waited.as_secs() }, &[]);
        // Rank 0 tells all ranks of it.
        let mut inner = self.shared.lock();
        let begun = Instant::now();
        while inner.failure.is_none() && begun.elapsed() < GOODBYE {
            inner = self.shared.wait(inner);
        }
        inner.failure.clone().unwrap_or(CommError::Cancelled)
    }

    /// Asks all ranks to end.
    pub fn wish_stop(&self, stop: Stop) {
        self.send(&FromRank::Stop(stop), &[]);
    }

    /// The most urgent wish of any rank.
    pub fn stop_wished(&self) -> Option<Stop> {
        self.shared.lock().stop
    }

    /// Bytes of all ranks, by rank, on rank 0; `None` on the others. All ranks call it alike; it returns when all have. A rank that has
    /// waited for the others for longer than `limit` ends the job; without one it waits for as long as they are alive.
    ///
    /// # Errors
    /// The bytes of all ranks are more than [`MAX_PAYLOAD`], the job fails, or a rank is waited for too long.
    pub fn gather(&self, bytes: &[u8], limit: Option<Duration>) -> Result<Option<Vec<Vec<u8>>>, CommError> {
        let parts = self.exchange(bytes, false, limit)?;
        Ok((self.rank == 0).then_some(parts))
    }

    /// Bytes of all ranks, by rank, on every rank; otherwise as [`Control::gather`].
    ///
    /// # Errors
    /// As [`Control::gather`].
    pub fn all_gather(&self, bytes: &[u8], limit: Option<Duration>) -> Result<Vec<Vec<u8>>, CommError> {
        self.exchange(bytes, true, limit)
    }

    fn exchange(&self, bytes: &[u8], to_all: bool, limit: Option<Duration>) -> Result<Vec<Vec<u8>>, CommError> {
        if bytes.len() > MAX_PAYLOAD as usize {
            return Err(CommError::PayloadTooLong { length: bytes.len() });
        }
        let mut next = self.next_exchange.lock().unwrap_or_else(PoisonError::into_inner);
        let number = *next;
        *next += 1;
        // Where this rank is must be known before it may be lost behind what it gives.
        let progress = self.shared.lock().progress;
        self.send(&FromRank::Beat(progress), &[]);
        self.send(&FromRank::Give { number, to_all }, bytes);
        let begun = Instant::now();
        let mut complained = None;
        let mut inner = self.shared.lock();
        loop {
            // The answer may come while the complaint is on its way to rank 0.
            if let Some((lengths, payload)) = inner.gathered.remove(&number) {
                return split(&lengths, &payload);
            }
            if let Some(error) = &inner.failure {
                return Err(error.clone());
            }
            let waited = begun.elapsed();
            match complained {
                None if limit.is_some_and(|limit| waited >= limit) => {
                    self.send(&FromRank::Unanswered { number, seconds: waited.as_secs() }, &[]);
                    complained = Some(Instant::now());
                }
                Some(since) if since.elapsed() >= GOODBYE => return Err(CommError::Cancelled),
                _ => {}
            }
            inner = self.shared.wait(inner);
        }
    }

    /// Ends this rank's membership in good order.
    pub fn leave(mut self) {
        self.shared.lock().leaving = true;
        self.send(&FromRank::Leave, &[]);
        // The writer ends behind what is queued and closes its direction; the server then closes the other.
        self.frames = None;
        let inner = self.shared.lock();
        drop(self.shared.changed.wait_timeout_while(inner, GOODBYE, |inner| !inner.closed));
    }

    fn send(&self, message: &FromRank, payload: &[u8]) {
        if let Some(frames) = &self.frames {
            // A writer that has ended has set the failure.
            let _ = frames.send(message::frame(message, payload));
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.frames = None;
        let _ = self.stream.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Watcher {
    /// Fails once the job has failed.
    ///
    /// # Errors
    /// The first failure that this rank learnt of.
    pub fn check(&self) -> Result<(), CommError> {
        self.0.check()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until something changes, or a while has passed.
    fn wait<'a>(&self, inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        let waited = self.changed.wait_timeout(inner, Duration::from_millis(100));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn check(&self) -> Result<(), CommError> {
        match self.failed.load(Ordering::Acquire) {
            true => Err(self.lock().failure.clone().expect("it is set before the flag")),
            false => Ok(()),
        }
    }

    /// Sets the failure, unless there is one.
    fn fail(&self, error: CommError) {
        self.lock().failure.get_or_insert(error);
        self.failed.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// Takes a message of the server.
    fn take(&self, message: ToRank, payload: Vec<u8>) {
        let mut inner = self.lock();
        inner.heard = true;
        inner.last_heard = Some(Instant::now());
        let failure = match message {
            ToRank::Beat(progress) => {
                inner.server_progress = progress;
                None
            }
            ToRank::Missing { ranks } => {
                inner.missing = Some(ranks);
                None
            }
            ToRank::Welcome { hosts } => {
                inner.server_host = hosts.first().cloned();
                inner.hosts = Some(hosts);
                None
            }
            ToRank::Stop(stop) => {
                inner.stop = inner.stop.max(Some(stop));
                None
            }
            ToRank::Gathered { number, lengths } => {
                inner.gathered.insert(number, (lengths, payload));
                None
            }
            ToRank::Refused(Refusal::Cookie) => Some(CommError::WrongCookie),
            ToRank::Refused(Refusal::Taken { host }) => Some(CommError::RankTaken { host }),
            ToRank::Refused(Refusal::Differs { field, expected, found }) => {
                Some(CommError::Differs { field, expected, found })
            }
            ToRank::Failed(failure) => {
                inner.confirmed = true;
                Some(CommError::Job(failure))
            }
        };
        drop(inner);
        match failure {
            Some(error) => self.fail(error),
            None => self.changed.notify_all(),
        }
    }

    /// The connection has ended: rank 0 is lost, unless this rank is leaving.
    fn lose_server(&self, reason: &str) {
        let mut inner = self.lock();
        inner.closed = true;
        let seen = inner.last_heard.map_or(0.0, |heard| heard.elapsed().as_secs_f64());
        let (leaving, progress) = (inner.leaving, inner.server_progress);
        let host = inner.server_host.as_ref().map_or(String::new(), |host| format!("(host {host}) "));
        drop(inner);
        match leaving {
            true => self.changed.notify_all(),
            false => self.fail(CommError::Job(Failure {
                kind: FailureKind::Lost,
                ranks: vec![0],
                message: format!("lost rank 0 {host}{progress}: {reason}; last seen {seen:.1} s ago"),
            })),
        }
    }
}

/// Connects to the first address of a host that answers.
fn connect(host: &str, port: u16, deadline: Instant) -> Result<TcpStream, String> {
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(|error| error.to_string())?.collect();
    let mut reason = "the name has no address".to_owned();
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT.min(left)) {
            Ok(stream) => return Ok(stream),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}

fn read(shared: &Shared, mut stream: TcpStream) {
    let error = loop {
        match message::read::<ToRank>(&mut stream, MAX_PAYLOAD) {
            Ok((message, payload)) => shared.take(message, payload),
            Err(error) => break error,
        }
    };
    shared.lose_server(&error.to_string());
}

/// Writes what is queued, and a heartbeat where nothing is.
fn write(shared: &Shared, stream: &mut TcpStream, queue: &Receiver<Vec<u8>>, beat: Duration) {
    loop {
        let written = match queue.recv_timeout(beat) {
            Ok(frame) => std::io::Write::write_all(stream, &frame),
            Err(RecvTimeoutError::Timeout) => {
                let progress = shared.lock().progress;
                message::write(stream, &FromRank::Beat(progress), &[])
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if written.is_err() {
            // The reader learns why.
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
}

/// The parts of a payload.
fn split(lengths: &[usize], payload: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
    let mut rest = payload;
    let mut parts = Vec::new();
    for &length in lengths {
        let Some((part, behind)) = rest.split_at_checked(length) else {
            return Err(CommError::Malformed { reason: format!("a part of {length} bytes of {}", rest.len()) });
        };
        parts.push(part.to_vec());
        rest = behind;
    }
    Ok(parts)
}

#[cfg(test)]
mod tests;
