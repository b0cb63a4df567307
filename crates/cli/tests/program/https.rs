//! Data sets come over https, from servers whose certificates are trusted.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use crate::common::{Ran, bessemer, ran};
use graviola::hashing::Sha256;
use graviola::signing::ecdsa::{P256, SigningKey as EcdsaKey};
use rcgen::{CertificateParams, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm, SigningKey};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use tempfile::TempDir;

const CONTENT: &[u8] = b"what the server has";

/// A new key, with the point that is its public half.
struct Key {
    secret: EcdsaKey<P256>,
    public: Vec<u8>,
}

impl Key {
    fn new() -> Self {
        let secret = EcdsaKey::<P256>::generate().unwrap();
        // The point (SEC 1, section 2.3.3: 04 and two coordinates) ends the description of the key.
        let mut buffer = [0; 256];
        let description = secret.to_spki_der(&mut buffer).unwrap();
        let public = description[description.len() - 65..].to_vec();
        Self { secret, public }
    }

    fn private(&self) -> PrivateKeyDer<'static> {
        let mut buffer = [0; 512];
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.secret.to_pkcs8_der(&mut buffer).unwrap().to_vec()))
    }
}

impl PublicKeyData for Key {
    fn der_bytes(&self) -> &[u8] {
        &self.public
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl SigningKey for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let mut buffer = [0; 128];
        Ok(self.secret.sign_asn1::<Sha256>(&[message], &mut buffer).unwrap().to_vec())
    }
}

/// A certificate for 127.0.0.1 that its own key has signed, in PEM form and in DER form.
fn certificate(key: &Key) -> (String, CertificateDer<'static>) {
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.serial_number = Some(vec![1].into());
    let certificate = params.self_signed(key).unwrap();
    (certificate.pem(), certificate.der().clone())
}

struct Server {
    address: String,
    /// What the certificate is in PEM form.
    pem: String,
    /// Requests whose handshake was completed.
    served: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

/// Gives each of at most 20 requests the content.
fn serve() -> Server {
    let key = Key::new();
    let (pem, der) = certificate(&key);
    let config = ServerConfig::builder_with_provider(Arc::new(rustls_graviola::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![der], key.private())
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let [served, connections] = [(), ()].map(|()| Arc::new(AtomicUsize::new(0)));
    let counts = [&served, &connections].map(Arc::clone);
    thread::spawn(move || {
        let [served, connections] = counts;
        for stream in listener.incoming().take(20) {
            connections.fetch_add(1, Ordering::SeqCst);
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(connection, stream.unwrap());
            if stream.read(&mut [0; 4096]).is_err() {
                continue;
            }
            served.fetch_add(1, Ordering::SeqCst);
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", CONTENT.len());
            let _ = stream.write_all(CONTENT);
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    Server { address, pem, served, connections }
}

/// Fetches the data set `mine`, of one file, trusting the certificates of a file.
fn fetch(folder: &Path, address: &str, trusted: Option<&str>) -> Ran {
    let table = format!(
        "sets = [{{ name = \"mine\", about = \"a file\", licence = \"own\", files = [\"mine.txt\"], next = \"bessemer doctor\" }}]\n\
         [files.\"mine.txt\"]\nurl = \"{address}/mine.txt\"\nbytes = {}\nkind = \"plain\"\n",
        CONTENT.len()
    );
    fs::write(folder.join("mine.toml"), table).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bessemer"));
    command.current_dir(folder).args(["data", "fetch", "mine", "--sets", "mine.toml"]).env_remove("SSL_CERT_FILE");
    for proxy in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
        command.env_remove(proxy);
    }
    ran(command.envs(trusted.map(|file| ("SSL_CERT_FILE", file))))
}

#[test]
fn certificates_are_trusted_by_a_file_alone() {
    if !graviola::util::is_cpu_supported() {
        std::io::stderr().write_all(b"skipped: https is not possible on this processor\n").unwrap();
        return;
    }
    let folder = TempDir::new().unwrap();
    let (server, other) = (serve(), Key::new());
    fs::write(folder.path().join("other.pem"), certificate(&other).0).unwrap();
    for trusted in [None, Some("other.pem")] {
        let parts = ["https://127.0.0.1", "/mine.txt: the certificate of the server is not trusted", "SSL_CERT_FILE"];
        fetch(folder.path(), &server.address, trusted).fails(2, &parts);
    }
    assert_eq!(server.served.load(Ordering::SeqCst), 0);
    assert_eq!(server.connections.load(Ordering::SeqCst), 2, "it is not tried again");

    // Beside another one, as in the file of a system.
    fs::write(folder.path().join("both.pem"), certificate(&other).0 + &server.pem).unwrap();
    fetch(folder.path(), &server.address, Some("both.pem")).ok();
    assert_eq!(fs::read(folder.path().join("mine/mine.txt")).unwrap(), CONTENT);
    assert_eq!(server.served.load(Ordering::SeqCst), 1);

    fs::remove_dir_all(folder.path().join("mine")).unwrap();
    fs::write(folder.path().join("empty.pem"), "nothing").unwrap();
    let fails = |file: &str, parts: &[&str]| {
        fetch(folder.path(), &server.address, Some(file)).fails(2, &[&[file, "SSL_CERT_FILE"], parts].concat());
    };
    fails("empty.pem", &["no certificate is in it"]);
    fails("absent.pem", &["cannot read the file"]);
    assert!(bessemer(folder.path(), "data fetch --help").ok().out.contains("SSL_CERT_FILE"));
}
