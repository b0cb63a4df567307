//! Fetching from a server in this process, which behaves well or badly.

use bessemer_fetch::{DataSet, FetchError, Kind, Options, RemoteFile, Report, fetch};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// What the server does with the request of this number, from 0.
type Behaviour = fn(usize) -> Reply;

#[derive(Clone, Copy)]
enum Reply {
    /// As a good server does.
    Good,
    /// Gives the whole file always.
    NoRanges,
    /// Closes the connection after so many bytes of content.
    Breaks(usize),
    Status(u16),
    /// To `/NAME`, from anywhere else.
    Redirect,
}

struct Server {
    address: String,
    /// Value of `Range` of each request, empty where there is none.
    ranges: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Serves at most 20 requests.
    fn start(content: Vec<u8>, behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&ranges);
        thread::spawn(move || {
            for (number, stream) in listener.incoming().take(20).enumerate() {
                let _ = serve(stream.unwrap(), &content, behaviour(number), &seen);
            }
        });
        Self { address, ranges }
    }

    fn ranges(&self) -> Vec<String> {
        self.ranges.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, content: &[u8], reply: Reply, ranges: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? == 1 {
        request.push(byte[0]);
    }
    let request = String::from_utf8(request).unwrap().to_lowercase();
    let header = |name: &str| request.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").to_owned();
    let range = header("range: ");
    ranges.lock().unwrap().push(range.clone());
    let start = match range.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-')) {
        Some(start) if !matches!(reply, Reply::NoRanges) && header("if-range: ") == "\"v1\"" => start.parse().unwrap(),
        _ => 0,
    };
    let is_redirected = matches!(reply, Reply::Redirect) && !request.starts_with("get /elsewhere/");
    if is_redirected {
        return write!(stream, "HTTP/1.1 302 Found\r\nLocation: /elsewhere/x\r\nContent-Length: 0\r\n\r\n");
    }
    if let Reply::Status(status) = reply {
        return write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    let (body, total) = (&content[start..], content.len());
    if start > 0 {
        write!(stream, "HTTP/1.1 206 Partial\r\nContent-Range: bytes {start}-{}/{total}\r\n", total - 1)?;
    } else {
        write!(stream, "HTTP/1.1 200 OK\r\n")?;
    }
    write!(stream, "ETag: \"v1\"\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    let end = if let Reply::Breaks(after) = reply { after.min(body.len()) } else { body.len() };
    stream.write_all(&body[..end])
}

/// A file of these bytes, with their size and checksum.
fn described(name: &str, content: &[u8]) -> RemoteFile {
    let sha256 = bessemer_data::hex(&Sha256::digest(content));
    RemoteFile {
        name: name.to_owned(),
        url: format!("http://127.0.0.1:1/{name}"),
        bytes: Some(content.len() as u64),
        sha256: Some(sha256),
        md5: None,
        kind: Kind::Plain,
        gives: Vec::new(),
    }
}

fn archived(name: &str, content: &[u8], kind: Kind, gives: &[&str]) -> RemoteFile {
    let gives = gives.iter().map(|name| (*name).to_owned()).collect();
    RemoteFile { kind, gives, ..described(name, content) }
}

struct Fetched {
    result: Result<usize, FetchError>,
    reports: Vec<String>,
}

impl Fetched {
    fn error(self) -> String {
        self.result.unwrap_err().to_string()
    }
}

fn fetched(file: RemoteFile, server: &Server, folder: &Path) -> Fetched {
    let set = DataSet {
        name: "x".to_owned(),
        about: String::new(),
        licence: String::new(),
        files: vec![file],
        next: String::new(),
    };
    let reports = RefCell::new(Vec::new());
    let report = |report: Report<'_>| {
        if !matches!(report, Report::Bytes { .. }) {
            reports.borrow_mut().push(format!("{report:?}"));
        }
    };
    let options = Options {
        from: Some(server.address.clone()),
        certificates: None,
        attempts: 3,
        pause: Duration::from_millis(1),
        patience: Duration::from_secs(20),
        is_stopped: &|| false,
        report: &report,
    };
    let result = fetch(&set, folder, &options);
    Fetched { result, reports: reports.into_inner() }
}

fn content() -> Vec<u8> {
    (0..1_000_000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_comes_whole_and_once() {
    let (folder, content) = (TempDir::new().unwrap(), content());
    let server = Server::start(content.clone(), |_| Reply::Good);
    let out = folder.path().join("new/x");
    assert_eq!(fetched(described("a.bin", &content), &server, &out).result.unwrap(), 1);
    assert!(fs::read(out.join("a.bin")).unwrap() == content);
    assert_eq!(names(&out), ["a.bin"]);
    assert_eq!(fetched(described("a.bin", &content), &server, &out).result.unwrap(), 0);
    assert_eq!(server.ranges(), [""]);
}

#[test]
fn redirections_are_followed() {
    let (folder, content) = (TempDir::new().unwrap(), content());
    let server = Server::start(content.clone(), |_| Reply::Redirect);
    fetched(described("a.bin", &content), &server, folder.path()).result.unwrap();
    assert!(fs::read(folder.path().join("a.bin")).unwrap() == content);
}

#[test]
fn a_broken_connection_goes_on_where_it_broke() {
    let (folder, content) = (TempDir::new().unwrap(), content());
    let server = Server::start(content.clone(), |number| match number {
        0 => Reply::Breaks(300_000),
        1 => Reply::Status(503),
        _ => Reply::Good,
    });
    let done = fetched(described("a.bin", &content), &server, folder.path());
    assert_eq!(done.reports.len(), 2, "{:?}", done.reports);
    assert!(fs::read(folder.path().join("a.bin")).unwrap() == content);
    let ranges = server.ranges();
    assert!(ranges[0].is_empty() && ranges[1].starts_with("bytes=") && ranges[2] == ranges[1], "{ranges:?}");
    assert_eq!(names(folder.path()), ["a.bin"]);
}

#[test]
fn a_connection_that_always_breaks_is_an_error_and_the_part_stays() {
    let (folder, content) = (TempDir::new().unwrap(), content());
    let server = Server::start(content.clone(), |number| match number {
        0 => Reply::Breaks(300_000),
        1..5 => Reply::Breaks(0),
        _ => Reply::Good,
    });
    let error = fetched(described("a.bin", &content), &server, folder.path()).error();
    assert!(error.contains("3 times") && error.contains("the same command goes on"), "{error}");
    assert_eq!(names(folder.path()), ["a.bin.part", "a.bin.part.json"]);
    fetched(described("a.bin", &content), &server, folder.path()).result.unwrap();
    assert!(fs::read(folder.path().join("a.bin")).unwrap() == content);
    assert!(server.ranges().last().unwrap().starts_with("bytes="));
}

#[test]
fn without_ranges_it_starts_over() {
    let (folder, content) = (TempDir::new().unwrap(), content());
    let server =
        Server::start(content.clone(), |number| if number == 0 { Reply::Breaks(300_000) } else { Reply::NoRanges });
    fetched(described("a.bin", &content), &server, folder.path()).result.unwrap();
    assert!(fs::read(folder.path().join("a.bin")).unwrap() == content);
}

#[test]
fn a_changed_file_is_not_joined_to_the_old_part() {
    let (folder, content) = (TempDir::new().unwrap(), content());
    fs::write(folder.path().join("a.bin.part"), [7; 1000]).unwrap();
    let server = Server::start(content.clone(), |_| Reply::Good);
    let origin = format!(r#"{{"url":"{}/a.bin","validator":"\"v0\""}}"#, server.address);
    fs::write(folder.path().join("a.bin.part.json"), origin).unwrap();
    fetched(described("a.bin", &content), &server, folder.path()).result.unwrap();
    assert_eq!(server.ranges(), ["bytes=1000-"]);
    assert!(fs::read(folder.path().join("a.bin")).unwrap() == content);
}

#[test]
fn a_wrong_checksum_is_an_error_and_the_next_call_starts_anew() {
    let (folder, content) = (TempDir::new().unwrap(), content());
    let server = Server::start(content.clone(), |_| Reply::Good);
    let mut other = content.clone();
    other[500_000] ^= 1;
    let error = fetched(described("a.bin", &other), &server, folder.path()).error();
    assert!(error.contains("SHA-256") && error.contains("a.bin.bad"), "{error}");
    assert_eq!(names(folder.path()), ["a.bin.bad"]);
    let md5 = RemoteFile { sha256: None, md5: Some("0".repeat(32)), ..described("a.bin", &content) };
    assert!(fetched(md5, &server, folder.path()).error().contains("MD5"));
}

#[test]
fn a_checksum_that_nobody_published_is_reported() {
    let (folder, content) = (TempDir::new().unwrap(), content());
    let server = Server::start(content.clone(), |_| Reply::Good);
    let file = RemoteFile { sha256: None, ..described("a.bin", &content) };
    let done = fetched(file, &server, folder.path());
    assert!(done.reports[0].contains(&described("", &content).sha256.unwrap()), "{:?}", done.reports);
}

#[test]
fn what_the_server_refuses_is_one_error() {
    let (folder, content) = (TempDir::new().unwrap(), content());
    let server = Server::start(content.clone(), |_| Reply::Status(404));
    let error = fetched(described("a.bin", &content), &server, folder.path()).error();
    assert!(error.contains("status 404") && error.contains("--from"), "{error}");
    assert_eq!(server.ranges().len(), 1);
    let server = Server::start(content.clone(), |_| Reply::Good);
    let file = RemoteFile { bytes: Some(999), ..described("a.bin", &content) };
    let error = fetched(file, &server, folder.path()).error();
    assert!(error.contains("has 1000000 bytes, expected 999"), "{error}");
    let file = RemoteFile { bytes: Some(1 << 60), ..described("a.bin", &content) };
    assert!(fetched(file, &server, folder.path()).error().contains("MB are needed"));
}

fn tar_gz(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (name, content) in entries {
        let mut header = tar::Header::new_gnu();
        // `set_path` refuses what a bad archive has.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        tar.append(&header, *content).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut archive = rawzip::ZipArchiveWriter::new(&mut bytes);
    for (name, content) in entries {
        let (mut entry, config) = archive.new_file(name).compression_method(DEFLATE).start().unwrap();
        let encoder = flate2::write::DeflateEncoder::new(&mut entry, Compression::fast());
        let mut writer = config.wrap(encoder);
        writer.write_all(content).unwrap();
        let (encoder, sizes) = writer.finish().unwrap();
        encoder.finish().unwrap();
        entry.finish(sizes).unwrap();
    }
    archive.finish().unwrap();
    bytes
}

const DEFLATE: rawzip::CompressionMethod = rawzip::CompressionMethod::DEFLATE;

#[test]
fn archives_are_unpacked_and_removed() {
    let content = content();
    let archive = tar_gz(&[("top/train/a/1.bin", &content[..]), ("top/val/a/2.bin", b"two"), ("top/more.csv", b"x")]);
    let folder = TempDir::new().unwrap();
    let server = Server::start(archive.clone(), |_| Reply::Good);
    let file = || archived("a.tgz", &archive, Kind::TarGz, &["train", "val"]);
    fetched(file(), &server, folder.path()).result.unwrap();
    assert_eq!(names(folder.path()), ["train", "val"]);
    assert!(fs::read(folder.path().join("train/a/1.bin")).unwrap() == content);
    fs::remove_dir_all(folder.path().join("val")).unwrap();
    fs::write(folder.path().join("train/own"), "mine").unwrap();
    fetched(file(), &server, folder.path()).result.unwrap();
    assert_eq!(fs::read(folder.path().join("val/a/2.bin")).unwrap(), b"two");
    assert_eq!(names(&folder.path().join("train")), ["a", "own"], "what is there stays");

    let archive = zip(&[("val2017/1.bin", &content[..]), ("val2017/2.bin", b"two")]);
    let server = Server::start(archive.clone(), |_| Reply::Good);
    fetched(archived("a.zip", &archive, Kind::Zip, &["val2017"]), &server, folder.path()).result.unwrap();
    assert!(fs::read(folder.path().join("val2017/1.bin")).unwrap() == content);
    let archive = zip(&[("top/wiki.raw", b"text")]);
    let server = Server::start(archive.clone(), |_| Reply::Good);
    fetched(archived("b.zip", &archive, Kind::ZipFolder, &["wiki.raw"]), &server, folder.path()).result.unwrap();
    assert_eq!(fs::read(folder.path().join("wiki.raw")).unwrap(), b"text");
}

#[test]
fn bad_archives_leave_nothing_behind() {
    let content = content();
    let whole = tar_gz(&[("top/train/1.bin", &content[..])]);
    let truncated = whole[..whole.len() / 2].to_vec();
    let bomb = tar_gz(&[("top/train/1.bin", &vec![0; 80 << 20][..])]);
    let mut link = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    link.append_link(&mut header, "top/train", "/etc").unwrap();
    let link = link.into_inner().unwrap().finish().unwrap();
    // The writer refuses what a bad archive has.
    let mut evil_zip = zip(&[("train/1.bin", b"x"), ("__/evil", b"evil")]);
    for at in 0..evil_zip.len() - 7 {
        if evil_zip[at..].starts_with(b"__/evil") {
            evil_zip[at..at + 2].copy_from_slice(b"..");
        }
    }
    let whole_zip = zip(&[("train/1.bin", &content[..])]);
    let mut flipped = whole_zip.clone();
    flipped[40_000] ^= 1;
    let cases = [
        (Kind::TarGz, tar_gz(&[("top/train/1.bin", b"x"), ("top/../../evil", b"evil")]), "`top/../../evil`"),
        (Kind::TarGz, tar_gz(&[("/train/evil", b"evil")]), "leaves the folder"),
        (Kind::Zip, evil_zip, "`../evil`"),
        (Kind::TarGz, link, "neither a file nor a folder"),
        (Kind::TarGz, truncated, "damaged"),
        (Kind::TarGz, bomb, "larger than can be"),
        (Kind::Zip, whole_zip[..whole_zip.len() / 2].to_vec(), "damaged"),
        (Kind::Zip, flipped, "damaged"),
        (Kind::TarGz, tar_gz(&[("top/test/1.bin", b"x")]), "has no `train`"),
    ];
    for (kind, archive, expected) in cases {
        let parent = TempDir::new().unwrap();
        let folder = parent.path().join("data");
        let server = Server::start(archive.clone(), |_| Reply::Good);
        let result = fetched(archived("a", &archive, kind, &["train"]), &server, &folder).result;
        let error = result.err().unwrap_or_else(|| panic!("accepted: {expected}")).to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!((names(&folder), names(parent.path())), (vec!["a.bad".to_owned()], vec!["data".to_owned()]));
    }
}

#[test]
fn cifar_becomes_pictures() {
    let record = |label: u8, red: u8| [vec![label], vec![red; 1024], vec![20; 1024], vec![30; 1024]].concat();
    let two = [record(0, 10), record(1, 11)].concat();
    let batches: Vec<String> = (1..=5).map(|batch| format!("c/data_batch_{batch}.bin")).collect();
    let mut entries: Vec<(&str, &[u8])> = batches.iter().map(|name| (name.as_str(), &two[..])).collect();
    entries.extend([("c/test_batch.bin", &two[..]), ("c/batches.meta.txt", b"cat\ndog\n\n")]);
    let archive = tar_gz(&entries);
    let folder = TempDir::new().unwrap();
    let server = Server::start(archive.clone(), |_| Reply::Good);
    fetched(archived("c.tgz", &archive, Kind::Cifar10, &["train", "val"]), &server, folder.path()).result.unwrap();
    assert_eq!(names(&folder.path().join("train/dog")).len(), 5);
    let picture = bessemer_data::Image::read(&folder.path().join("val/dog/00011.png")).unwrap();
    assert_eq!((picture.width, picture.height, &picture.pixels[..3]), (32, 32, &[11, 20, 30][..]));
}

#[test]
fn a_stop_keeps_the_part() {
    let (folder, content) = (TempDir::new().unwrap(), content());
    fs::write(folder.path().join("a.bin.part"), &content[..10]).unwrap();
    let server = Server::start(content.clone(), |_| Reply::Good);
    let set = DataSet {
        name: "x".to_owned(),
        about: String::new(),
        licence: String::new(),
        files: vec![described("a.bin", &content)],
        next: String::new(),
    };
    let options = Options {
        from: Some(server.address.clone()),
        certificates: None,
        attempts: 3,
        pause: Duration::from_millis(1),
        patience: Duration::from_secs(20),
        is_stopped: &|| true,
        report: &|_| {},
    };
    let error = fetch(&set, folder.path(), &options).unwrap_err();
    assert!(matches!(error, FetchError::Stopped { .. }) && error.to_string().contains("goes on from here"));
    assert_eq!(fs::read(folder.path().join("a.bin.part")).unwrap(), &content[..10]);
}
