//! A data set comes from a server and is what it says.

use crate::common::bessemer;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use tempfile::TempDir;

/// Gives each of at most 20 requests this content, whatever it asks for.
fn serve(content: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().take(20) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", content.len());
            let _ = stream.write_all(&content);
        }
    });
    address
}

/// A table of the data set `mine`, of one archive.
fn write_table(folder: &TempDir, bytes: usize, address: &str) {
    let table = format!(
        r#"sets = [{{ name = "mine", about = "shapes", licence = "own", files = ["mine.tgz"], next = "bessemer data verify class-folder DIR" }}]
[files."mine.tgz"]
url = "{address}/mine.tgz"
bytes = {bytes}
kind = "tar-gz"
gives = ["train", "val"]
"#
    );
    fs::write(folder.path().join("mine.toml"), table).unwrap();
}

#[test]
fn a_fetched_folder_is_a_data_set() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    run("data shapes --out shapes --train 20 --val 10 --size 32").ok();
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    tar.append_dir_all("top", folder.path().join("shapes")).unwrap();
    let archive = tar.into_inner().unwrap().finish().unwrap();
    let bytes = archive.len();
    let address = serve(archive);

    write_table(&folder, bytes, "http://127.0.0.1:1");
    let fetched = run(&format!("data fetch mine --sets mine.toml --from {address}/")).ok();
    assert!(fetched.out.contains("next: bessemer data verify class-folder mine\n"), "{}", fetched.out);
    for part in ["licence: own", "SHA-256", "nothing was there to compare it with", "unpacking"] {
        assert!(fetched.err.contains(part), "{part} is missing in {}", fetched.err);
    }
    run("data verify class-folder mine").ok();
    let again = run("data fetch mine --sets mine.toml --json -q").ok();
    let again: serde_json::Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!((&again["files"], &again["folder"]), (&0.into(), &"mine".into()));

    run(&format!("data fetch mine --sets mine.toml --out more --from {address} -q")).ok();
    write_table(&folder, bytes + 1, &address);
    run("data fetch mine --sets mine.toml --out other").fails(2, &["the server has", "expected"]);
    run(&format!("data fetch imagenette --from {address}")).fails(2, &["the server has", "expected 341663724"]);
}

#[test]
fn data_sets_are_listed_and_named() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    let list = run("data fetch --list").ok().out;
    assert!(list.contains("imagenette") && list.contains("341.7") && list.contains("not tried"), "{list}");
    let json: serde_json::Value = serde_json::from_str(&run("data fetch --list --json").ok().out).unwrap();
    assert_eq!(json[0]["files"][0]["bytes"], 341_663_724);
    run("data fetch imagenet").fails(2, &["'imagenet'", "imagenette"]);
    run("data fetch").fails(2, &["NAME"]);
    run("data fetch imagenette --from ftp://x").fails(2, &["--from", "http://"]);
    run("data fetch mine --sets absent.toml").fails(1, &["absent.toml", "cannot read the file"]);
    fs::write(folder.path().join("bad.toml"), "sets = 1").unwrap();
    run("data fetch mine --sets bad.toml").fails(2, &["bad.toml", "line 1"]);
}
