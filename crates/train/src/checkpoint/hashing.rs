//! SHA-256 of a stream while it passes.

use bessemer_data::hex;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

pub(super) struct Hashing<T> {
    pub(super) inner: T,
    hasher: Sha256,
    bytes: u64,
}

impl<T> Hashing<T> {
    pub(super) fn new(inner: T) -> Self {
        Self { inner, hasher: Sha256::new(), bytes: 0 }
    }

    /// `(bytes that passed, lower-case hexadecimal SHA-256)`.
    pub(super) fn finish(self) -> (u64, String) {
        (self.bytes, hex(&self.hasher.finalize()))
    }

    fn pass(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buffer)?;
        self.pass(&buffer[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.pass(&buffer[..read]);
        Ok(read)
    }
}

pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Lower-case hexadecimal SHA-256 of a file's bytes.
pub(crate) fn sha256_of_file(path: &Path) -> io::Result<String> {
    let mut sink = Hashing::new(io::sink());
    io::copy(&mut File::open(path)?, &mut sink)?;
    Ok(sink.finish().1)
}
