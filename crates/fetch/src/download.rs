use crate::checksum::{Comparison, compare};
use crate::error::io_error;
use crate::{FetchError, Kind, RemoteFile};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};
use ureq::Agent;
use ureq::http::{HeaderMap, Response};
use ureq::tls::{PemItem, RootCerts, parse_pem};

/// How to fetch.
pub struct Options<'a> {
    /// The address that stands for the folder of each file's own address: a mirror.
    pub from: Option<String>,
    /// A file of certificates in PEM form that are trusted instead of Mozilla's roots.
    pub certificates: Option<PathBuf>,
    /// How often a file is tried in a row without a byte of it.
    pub attempts: u32,
    /// Wait before the second attempt; each further wait is twice as long.
    pub pause: Duration,
    /// A server that says nothing for so long has gone.
    pub patience: Duration,
    /// Whether to stop.
    pub is_stopped: &'a dyn Fn() -> bool,
    /// Is told what happens.
    pub report: &'a dyn Fn(Report<'_>),
}

/// What happens.
#[expect(missing_docs, reason = "each variant says what its fields hold")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Report<'a> {
    /// `done` bytes of the file are here, of `total` if that is known; `rate` bytes a second come.
    Bytes { name: &'a str, done: u64, total: Option<u64>, rate: f64 },
    /// The connection of file `name` broke for this reason, and it is tried again.
    Again { name: &'a str, reason: &'a str },
    /// Nothing is published to compare the SHA-256 of file `name` with.
    Unchecked { name: &'a str, sha256: &'a str },
    /// The archive `name` is being unpacked.
    Unpacking { name: &'a str },
}

/// What is kept beside an unfinished file, to ask for the rest of the same content.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    url: String,
    /// A strong `ETag`, or `Last-Modified`.
    validator: Option<String>,
}

enum Event {
    Head { status: u16, headers: HeaderMap },
    Bytes(Vec<u8>),
    End,
    Failed(String),
    Untrusted(String),
}

/// How an attempt ended that is no final error.
enum Outcome {
    Complete,
    Broken(String),
}

/// Makes sure that what is known to come has room.
pub(crate) fn check_space(files: &[&RemoteFile], folder: &Path) -> Result<(), FetchError> {
    let needed: u64 = files
        .iter()
        .map(|file| {
            let bytes = file.bytes.unwrap_or(0);
            let here = size_of(&folder.join(&file.name)).max(size_of(&part_of(folder, file)));
            let unpacked = if file.kind == Kind::Plain { 0 } else { bytes };
            bytes.saturating_sub(here) + unpacked
        })
        .sum();
    let system =
        nix::sys::statvfs::statvfs(folder).map_err(|error| io_error(folder, "ask for the free space")(error.into()))?;
    let free = system.blocks_available() * system.fragment_size();
    if free < needed {
        let mega = |bytes: u64| bytes / 1_000_000;
        return Err(FetchError::Space { folder: folder.to_owned(), free: mega(free), needed: mega(needed) });
    }
    Ok(())
}

/// Downloads a file and compares it with its checksum.
pub(crate) fn download(file: &RemoteFile, folder: &Path, options: &Options<'_>) -> Result<PathBuf, FetchError> {
    let path = folder.join(&file.name);
    let part = part_of(folder, file);
    if !path.exists() {
        bring(file, &part, options)?;
        fs::rename(&part, &path).map_err(io_error(&part, "rename the file"))?;
        let _ = fs::remove_file(origin_of(&part));
    }
    match compare(file, &path)? {
        Comparison::Same => {}
        Comparison::Unknown(sha256) => (options.report)(Report::Unchecked { name: &file.name, sha256: &sha256 }),
        Comparison::Differs { algorithm, found, expected } => {
            let bad = set_aside(&path)?;
            return Err(FetchError::Checksum { path, bad, algorithm, found, expected });
        }
    }
    Ok(path)
}

/// Renames a file that is no good to `NAME.bad`.
pub(crate) fn set_aside(path: &Path) -> Result<PathBuf, FetchError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".bad");
    let bad = PathBuf::from(name);
    fs::rename(path, &bad).map_err(io_error(path, "rename the file"))?;
    Ok(bad)
}

/// Downloads until the file is complete.
fn bring(file: &RemoteFile, part: &Path, options: &Options<'_>) -> Result<(), FetchError> {
    let url = match &options.from {
        Some(base) => format!("{}/{}", base.trim_end_matches('/'), file.name),
        None => file.url.clone(),
    };
    if url.starts_with("https:") && !https::is_possible() {
        return Err(FetchError::NoHttps { url });
    }
    let roots = roots(options.certificates.as_deref())?;
    let (mut failures, mut pause) = (0, options.pause);
    loop {
        let before = size_of(part);
        let reason = match attempt(file, &url, &roots, part, options)? {
            Outcome::Complete => return Ok(()),
            Outcome::Broken(reason) => reason,
        };
        if size_of(part) > before {
            (failures, pause) = (0, options.pause);
        }
        failures += 1;
        if failures >= options.attempts {
            return Err(FetchError::Connection { url, reason, attempts: failures });
        }
        (options.report)(Report::Again { name: &file.name, reason: &reason });
        let until = Instant::now() + pause;
        while Instant::now() < until {
            stop_if_asked(part, options)?;
            thread::sleep(POLL.min(until.saturating_duration_since(Instant::now())));
        }
        pause *= 2;
    }
}

const POLL: Duration = Duration::from_millis(100);

fn stop_if_asked(part: &Path, options: &Options<'_>) -> Result<(), FetchError> {
    if (options.is_stopped)() { Err(FetchError::Stopped { path: part.to_owned() }) } else { Ok(()) }
}

fn attempt(
    file: &RemoteFile,
    url: &str,
    roots: &RootCerts,
    part: &Path,
    options: &Options<'_>,
) -> Result<Outcome, FetchError> {
    let mut done = size_of(part);
    if done > 0 && file.bytes == Some(done) {
        return Ok(Outcome::Complete);
    }
    let origin = read_origin(part).filter(|origin| origin.url == url).unwrap_or_default();
    if origin.validator.is_none() || file.bytes.is_some_and(|bytes| done > bytes) {
        done = 0;
    }
    let (sender, events) = mpsc::sync_channel(4);
    let request = Request { url: url.to_owned(), start: done, validator: origin.validator, roots: roots.clone() };
    thread::spawn(move || request.run(&sender));

    let mut out: Option<File> = None;
    let mut total = file.bytes;
    let (mut heard, started, first) = (Instant::now(), Instant::now(), done);
    loop {
        stop_if_asked(part, options)?;
        let event = match events.recv_timeout(POLL) {
            Err(RecvTimeoutError::Timeout) if heard.elapsed() < options.patience => continue,
            Err(RecvTimeoutError::Timeout) => {
                return Ok(Outcome::Broken("the server says nothing more".to_owned()));
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(Outcome::Broken("the connection failed".to_owned())),
            Ok(event) => event,
        };
        heard = Instant::now();
        match event {
            Event::Failed(reason) => return Ok(Outcome::Broken(reason)),
            Event::Untrusted(reason) => return Err(FetchError::Untrusted { url: url.to_owned(), reason }),
            Event::Head { status, headers } => {
                match answer(status, &headers, done) {
                    Answer::Rest => {}
                    Answer::Whole => done = 0,
                    Answer::Nonsense(reason) => {
                        remove_part(part)?;
                        return Ok(Outcome::Broken(reason));
                    }
                    Answer::Later => return Ok(Outcome::Broken(format!("status {status}"))),
                    Answer::No => return Err(FetchError::Refused { url: url.to_owned(), status }),
                }
                let length = text(&headers, "content-length").and_then(|length| length.parse::<u64>().ok());
                let coming = length.map(|length| length + done);
                check_size(file, url, coming)?;
                total = total.or(coming);
                out = Some(open_part(part, done, url, &headers)?);
            }
            Event::Bytes(bytes) => {
                done += bytes.len() as u64;
                if file.bytes.is_some_and(|expected| done > expected) {
                    remove_part(part)?;
                    check_size(file, url, Some(done))?;
                }
                let out = out.as_mut().expect("the head comes first");
                out.write_all(&bytes).map_err(io_error(part, "write the file"))?;
                let rate = done.saturating_sub(first) as f64 / started.elapsed().as_secs_f64().max(1e-3);
                (options.report)(Report::Bytes { name: &file.name, done, total, rate });
            }
            Event::End => {
                if let Some(out) = out {
                    out.sync_all().map_err(io_error(part, "write the file"))?;
                }
                return Ok(match total {
                    Some(total) if done < total => Outcome::Broken(format!("it ended at byte {done} of {total}")),
                    _ => Outcome::Complete,
                });
            }
        }
    }
}

enum Answer {
    /// What was asked for.
    Rest,
    /// The file from its start.
    Whole,
    /// Another part than the one asked for.
    Nonsense(String),
    Later,
    No,
}

fn answer(status: u16, headers: &HeaderMap, start: u64) -> Answer {
    match status {
        200 => Answer::Whole,
        206 if text(headers, "content-range").is_some_and(|range| range.starts_with(&format!("bytes {start}-"))) => {
            Answer::Rest
        }
        206 | 416 => Answer::Nonsense(format!("the server does not give the part from byte {start}")),
        408 | 425 | 429 | 500..=599 => Answer::Later,
        _ => Answer::No,
    }
}

fn check_size(file: &RemoteFile, url: &str, found: Option<u64>) -> Result<(), FetchError> {
    match (found, file.bytes) {
        (Some(found), Some(expected)) if found != expected => {
            Err(FetchError::Size { url: url.to_owned(), found, expected })
        }
        _ => Ok(()),
    }
}

/// Opens the unfinished file to go on at `start`, and notes where its content is from.
fn open_part(part: &Path, start: u64, url: &str, headers: &HeaderMap) -> Result<File, FetchError> {
    let strong = text(headers, "etag").filter(|etag| !etag.starts_with("W/"));
    let validator = strong.or_else(|| text(headers, "last-modified")).map(str::to_owned);
    let origin = serde_json::to_vec(&Origin { url: url.to_owned(), validator }).expect("text is JSON");
    let path = origin_of(part);
    fs::write(&path, origin).map_err(io_error(&path, "write the file"))?;
    let file = OpenOptions::new().create(true).append(true).open(part).map_err(io_error(part, "open the file"))?;
    file.set_len(start).map_err(io_error(part, "write the file"))?;
    Ok(file)
}

fn read_origin(part: &Path) -> Option<Origin> {
    serde_json::from_slice(&fs::read(origin_of(part)).ok()?).ok()
}

fn remove_part(part: &Path) -> Result<(), FetchError> {
    let _ = fs::remove_file(origin_of(part));
    fs::remove_file(part).map_err(io_error(part, "remove the file"))
}

fn part_of(folder: &Path, file: &RemoteFile) -> PathBuf {
    folder.join(format!("{}.part", file.name))
}

fn origin_of(part: &Path) -> PathBuf {
    part.with_extension("part.json")
}

fn size_of(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// What a thread of its own asks for, so that a silent server delays neither the end nor the next attempt.
struct Request {
    url: String,
    start: u64,
    validator: Option<String>,
    roots: RootCerts,
}

impl Request {
    /// Sends events until the end, or until nobody listens.
    fn run(self, sender: &SyncSender<Event>) {
        let last = match self.events(sender) {
            Ok(()) => Event::End,
            Err(last) => last,
        };
        let _ = sender.send(last);
    }

    /// Errors: the last event.
    fn events(self, sender: &SyncSender<Event>) -> Result<(), Event> {
        let mut request = agent(self.roots).get(&self.url).header("accept-encoding", "identity");
        if let Some(validator) = self.validator.filter(|_| self.start > 0) {
            request = request.header("range", format!("bytes={}-", self.start)).header("if-range", validator);
        }
        let response: Response<ureq::Body> = request.call().map_err(failed)?;
        let (head, body) = response.into_parts();
        let status = head.status.as_u16();
        if sender.send(Event::Head { status, headers: head.headers }).is_err() {
            return Ok(());
        }
        let mut body = body.into_reader();
        loop {
            let mut bytes = vec![0; 1 << 18];
            let count = body.read(&mut bytes).map_err(|error| Event::Failed(error.to_string()))?;
            bytes.truncate(count);
            if count == 0 || sender.send(Event::Bytes(bytes)).is_err() {
                return Ok(());
            }
        }
    }
}

/// Why there is no answer.
fn failed(error: ureq::Error) -> Event {
    match https::distrust(&error) {
        Some(reason) => Event::Untrusted(reason),
        None => Event::Failed(error.to_string()),
    }
}

/// The certificates that are trusted: those of a file, or Mozilla's roots.
fn roots(file: Option<&Path>) -> Result<RootCerts, FetchError> {
    let Some(path) = file else { return Ok(RootCerts::WebPki) };
    let problem = |problem: String| FetchError::Certificates { path: path.to_owned(), problem };
    let text = fs::read(path).map_err(|error| problem(format!("cannot read the file: {error}")))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&text) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| problem(error.to_string()))? {
            certificates.push(certificate);
        }
    }
    match certificates.is_empty() {
        true => Err(problem("no certificate is in it".to_owned())),
        false => Ok(RootCerts::new_with_certs(&certificates)),
    }
}

/// Cryptography for encrypted connections.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod https {
    use std::sync::Arc;
    use ureq::tls::{RootCerts, TlsConfig};

    pub(super) fn is_possible() -> bool {
        graviola::util::is_cpu_supported()
    }

    pub(super) fn config(roots: RootCerts) -> TlsConfig {
        let provider = Arc::new(rustls_graviola::default_provider());
        TlsConfig::builder().unversioned_rustls_crypto_provider(provider).root_certs(roots).build()
    }

    /// Why the certificate of the server is not trusted, if that is the error.
    pub(super) fn distrust(error: &ureq::Error) -> Option<String> {
        let error = match error {
            ureq::Error::Rustls(error) => error,
            ureq::Error::Io(error) => error.get_ref()?.downcast_ref()?,
            _ => return None,
        };
        matches!(error, rustls::Error::InvalidCertificate(_)).then(|| error.to_string())
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod https {
    use ureq::tls::{RootCerts, TlsConfig};

    pub(super) fn is_possible() -> bool {
        false
    }

    pub(super) fn config(_: RootCerts) -> TlsConfig {
        TlsConfig::default()
    }

    pub(super) fn distrust(_: &ureq::Error) -> Option<String> {
        None
    }
}

/// A client that follows redirections and takes proxies from the environment.
fn agent(roots: RootCerts) -> Agent {
    let config = Agent::config_builder()
        .tls_config(https::config(roots))
        .http_status_as_error(false)
        .timeout_connect(Some(Duration::from_secs(30)))
        .user_agent(concat!("bessemer/", env!("CARGO_PKG_VERSION")));
    config.build().into()
}
