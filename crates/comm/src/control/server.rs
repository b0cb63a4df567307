//! The server of the control channel: sockets and threads around [`State`].

use super::Job;
use super::message::{self, FromRank, MAX_PAYLOAD};
use super::state::{Action, Connection, State};
use crate::CommError;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a connection may take to say who it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Between looks at new connections and deadlines.
const TICK: Duration = Duration::from_millis(5);

/// The control channel's server, on rank 0. Dropping it closes all connections.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    inner: Mutex<Inner>,
    started: Instant,
    closing: AtomicBool,
}

struct Inner {
    state: State,
    links: BTreeMap<Connection, Link>,
}

/// A connection: what is to be written (nothing more after `None`), and the socket to shut down.
struct Link {
    frames: Sender<Option<Vec<u8>>>,
    stream: TcpStream,
}

/// Listens on all interfaces, or on loopback alone if `host` is a loopback address. Port 0 takes any free one.
///
/// # Errors
/// The port is taken or not allowed.
pub fn listen(host: &str, port: u16) -> Result<TcpListener, CommError> {
    let loopback = match host {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        _ => host.parse::<IpAddr>().ok().filter(IpAddr::is_loopback),
    };
    let candidates: Vec<SocketAddr> = match loopback {
        Some(address) => vec![(address, port).into()],
        // The second where there is no IPv6.
        None => vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()],
    };
    TcpListener::bind(&candidates[..]).map_err(|error| CommError::Listen { port, reason: error.to_string() })
}

impl Server {
    /// Serves a job on this listener. Deadlines begin now.
    ///
    /// # Errors
    /// The system refuses a thread or the listener's settings.
    pub fn start(listener: TcpListener, job: &Job) -> Result<Server, CommError> {
        let failed = |error: std::io::Error| CommError::Listen { port: 0, reason: error.to_string() };
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let inner = Inner { state: State::new(job.hello(0), job.deadlines), links: BTreeMap::new() };
        let shared =
            Arc::new(Shared { inner: Mutex::new(inner), started: Instant::now(), closing: AtomicBool::new(false) });
        let serving = shared.clone();
        let write_timeout = job.deadlines.peer;
        let thread = spawn("control server", move || accept(&serving, &listener, write_timeout))?;
        Ok(Server { shared, address, thread: Some(thread) })
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Waits until every rank has left or closed its connection, at most `timeout`, and closes what is left.
    pub fn close(self, timeout: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < timeout {
            let inner = self.shared.lock();
            if inner.state.all_left() || (inner.state.has_failed() && inner.links.is_empty()) {
                return;
            }
            drop(inner);
            std::thread::sleep(TICK);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for link in self.shared.lock().links.values() {
            let _ = link.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the state see an event, and does what it decides.
    fn event(&self, see: impl FnOnce(&mut State, Duration) -> Vec<Action>) {
        let mut inner = self.lock();
        let actions = see(&mut inner.state, self.started.elapsed());
        for action in actions {
            let (connection, bytes) = match action {
                Action::Send(connection, message, payload) => (connection, Some(message::frame(&message, &payload))),
                Action::Close(connection) => (connection, None),
            };
            if let Some(link) = inner.links.get(&connection) {
                // A writer that has ended leaves it to its reader to say so.
                let _ = link.frames.send(bytes);
            }
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, CommError> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    thread.map_err(|error| CommError::Thread { reason: error.to_string() })
}

/// Takes connections and lets time pass until the server closes.
fn accept(shared: &Arc<Shared>, listener: &TcpListener, write_timeout: Duration) {
    let mut next: Connection = 0;
    while !shared.closing.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((stream, _)) => {
                next += 1;
                // A connection that cannot be served is closed by being dropped.
                let _ = serve(shared, next, stream, write_timeout);
            }
            Err(_) => {
                shared.event(State::tick);
                std::thread::sleep(TICK);
            }
        }
    }
}

/// Starts the reader and the writer of a connection.
fn serve(
    shared: &Arc<Shared>,
    connection: Connection,
    stream: TcpStream,
    write_timeout: Duration,
) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
    stream.set_write_timeout(Some(write_timeout))?;
    let (reading, writing) = (stream.try_clone()?, stream.try_clone()?);
    let (frames, queue) = channel();
    shared.lock().links.insert(connection, Link { frames, stream });
    let reader = shared.clone();
    let started = spawn("control reader", move || read(&reader, connection, reading))
        .and_then(|_| spawn("control writer", move || write(writing, &queue)));
    if started.is_err() {
        shared.lock().links.remove(&connection);
    }
    Ok(())
}

fn read(shared: &Shared, connection: Connection, mut stream: TcpStream) {
    // A stranger may send no more than a hello.
    let mut max_payload = 0;
    let error = loop {
        match message::read::<FromRank>(&mut stream, max_payload) {
            Ok((message, payload)) => {
                max_payload = MAX_PAYLOAD;
                let _ = stream.set_read_timeout(None);
                shared.event(|state, now| state.message(connection, message, payload, now));
            }
            Err(error) => break error,
        }
    };
    shared.event(|state, now| state.gone(connection, &error.to_string(), now));
    let link = shared.lock().links.remove(&connection);
    // The writer ends when it has written what is queued.
    drop(link);
}

fn write(mut stream: TcpStream, queue: &Receiver<Option<Vec<u8>>>) {
    while let Ok(Some(frame)) = queue.recv() {
        if std::io::Write::write_all(&mut stream, &frame).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Both);
}
