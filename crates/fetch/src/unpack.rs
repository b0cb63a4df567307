use crate::download::{Options, Report, set_aside};
use crate::error::io_error;
use crate::{FetchError, Kind, RemoteFile};
use bessemer_data::{FileFormat, Image, Unfinished};
use flate2::read::{DeflateDecoder, MultiGzDecoder};
use rawzip::{CompressionMethod, RECOMMENDED_BUFFER_SIZE, ZipArchive};
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Component, Path, PathBuf};

/// Archives of data do not grow more than this when they are unpacked, apart from a constant.
const LARGEST_GROWTH: u64 = 20;
const SMALL: u64 = 1 << 26;

/// Why an archive is not unpacked.
enum Problem {
    /// The archive itself.
    Archive(String),
    Other(FetchError),
}

impl From<FetchError> for Problem {
    fn from(error: FetchError) -> Self {
        Self::Other(error)
    }
}

fn damaged(error: impl ToString) -> Problem {
    Problem::Archive(format!("the archive is damaged: {}", error.to_string()))
}

/// Unpacks a file beside its destination, moves what it gives there, and removes the archive. What is there already stays.
pub(crate) fn unpack(
    file: &RemoteFile,
    archive: &Path,
    folder: &Path,
    options: &Options<'_>,
) -> Result<(), FetchError> {
    if file.kind == Kind::Plain {
        return Ok(());
    }
    (options.report)(Report::Unpacking { name: &file.name });
    let room = folder.join(format!("{}.unpacking", file.name));
    if room.exists() {
        fs::remove_dir_all(&room).map_err(io_error(&room, "remove the folder"))?;
    }
    let _unfinished = Unfinished::begin(&room);
    match fill(file, archive, &room, options) {
        Ok(()) => {}
        Err(Problem::Other(error)) => return Err(error),
        Err(Problem::Archive(problem)) => {
            let bad = set_aside(archive)?;
            return Err(FetchError::Archive { path: archive.to_owned(), bad, problem });
        }
    }
    for name in &file.gives {
        let (from, to) = (room.join(name), folder.join(name));
        if !to.exists() {
            fs::rename(&from, &to).map_err(io_error(&to, "move what was unpacked"))?;
        }
    }
    fs::remove_file(archive).map_err(io_error(archive, "remove the archive"))
}

fn fill(file: &RemoteFile, archive: &Path, room: &Path, options: &Options<'_>) -> Result<(), Problem> {
    let opened = File::open(archive).map_err(io_error(archive, "open the archive"))?;
    let length = opened.metadata().map_err(io_error(archive, "read the archive"))?.len();
    let left = length.saturating_mul(LARGEST_GROWTH).saturating_add(SMALL);
    let is_folder = file.kind != Kind::Zip;
    let mut writer = Writer { room, strip: usize::from(is_folder), left, options };
    match file.kind {
        Kind::Zip | Kind::ZipFolder => writer.zip(opened)?,
        Kind::TarGz | Kind::Cifar10 | Kind::Plain => writer.tar_gz(opened)?,
    }
    if file.kind == Kind::Cifar10 {
        write_cifar10(room, options)?;
    }
    match file.gives.iter().find(|name| !room.join(name).exists()) {
        Some(name) => Err(Problem::Archive(format!("the archive has no `{name}`"))),
        None => Ok(()),
    }
}

/// Writes the entries of an archive.
struct Writer<'a> {
    room: &'a Path,
    /// Outer folders of each entry to leave out.
    strip: usize,
    /// Bytes that may still be written.
    left: u64,
    options: &'a Options<'a>,
}

impl Writer<'_> {
    fn tar_gz(&mut self, archive: File) -> Result<(), Problem> {
        let mut archive = tar::Archive::new(MultiGzDecoder::new(BufReader::new(archive)));
        for entry in archive.entries().map_err(damaged)? {
            let mut entry = entry.map_err(damaged)?;
            let name = entry.path().map_err(damaged)?.into_owned();
            let (kind, size) = (entry.header().entry_type(), entry.size());
            if kind.is_file() {
                self.file(&name, size, &mut entry)?;
            } else if kind.is_dir() {
                self.place(&name)?;
            } else if !kind.is_pax_global_extensions() {
                return Err(Problem::Archive(format!("`{}` is neither a file nor a folder", name.display())));
            }
        }
        // The checksum stands behind the last entry.
        io::copy(&mut archive.into_inner().take(SMALL), &mut io::sink()).map_err(damaged)?;
        Ok(())
    }

    fn zip(&mut self, archive: File) -> Result<(), Problem> {
        let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
        let archive = ZipArchive::from_file(archive, &mut buffer).map_err(damaged)?;
        let mut entries = archive.entries(&mut buffer);
        while let Some(header) = entries.next_entry().map_err(damaged)? {
            let raw = header.file_path();
            let name = PathBuf::from(str::from_utf8(raw.as_ref()).map_err(damaged)?);
            if header.is_dir() {
                self.place(&name)?;
                continue;
            }
            let (size, method) = (header.uncompressed_size_hint(), header.compression_method());
            let entry = archive.get_entry(header.wayfinder()).map_err(damaged)?;
            if method == CompressionMethod::STORE {
                self.file(&name, size, &mut entry.verifying_reader(entry.reader()))?;
            } else if method == CompressionMethod::DEFLATE {
                let inflated = DeflateDecoder::new(BufReader::new(entry.reader()));
                self.file(&name, size, &mut entry.verifying_reader(inflated))?;
            } else {
                return Err(Problem::Archive(format!("`{}` is packed by an unknown method", name.display())));
            }
        }
        Ok(())
    }

    /// Where an entry goes; nowhere, if it is an outer folder itself.
    fn place(&self, name: &Path) -> Result<Option<PathBuf>, Problem> {
        let mut parts = Vec::new();
        for part in name.components() {
            match part {
                Component::Normal(part) => parts.push(part),
                Component::CurDir => {}
                _ => {
                    let problem = format!("`{}` in the archive leaves the folder", name.display());
                    return Err(Problem::Archive(problem));
                }
            }
        }
        let inner = parts.get(self.strip..).unwrap_or_default();
        Ok((!inner.is_empty()).then(|| self.room.join(inner.iter().collect::<PathBuf>())))
    }

    fn file(&mut self, name: &Path, size: u64, content: &mut impl Read) -> Result<(), Problem> {
        if (self.options.is_stopped)() {
            return Err(FetchError::Stopped { path: self.room.to_owned() }.into());
        }
        let Some(path) = self.place(name)? else {
            return Err(Problem::Archive(format!("`{}` stands outside the archive's folder", name.display())));
        };
        if size > self.left {
            return Err(Problem::Archive(format!("`{}` is larger than can be", name.display())));
        }
        let parent = path.parent().expect("it is in the room");
        fs::create_dir_all(parent).map_err(io_error(parent, "create the folder"))?;
        let mut out = File::create_new(&path).map_err(io_error(&path, "create the file"))?;
        let mut copied = 0;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let count = content.read(&mut buffer).map_err(damaged)?;
            if count == 0 {
                break;
            }
            copied += count as u64;
            if copied > size {
                break;
            }
            io::Write::write_all(&mut out, &buffer[..count]).map_err(io_error(&path, "write the file"))?;
        }
        if copied != size {
            return Err(Problem::Archive(format!("`{}` does not have the {size} bytes it should", name.display())));
        }
        self.left -= copied;
        Ok(())
    }
}

const SIDE: usize = 32;
const PLANE: usize = SIDE * SIDE;

/// From records of a label and three planes `[3, 32, 32]` to `train/CLASS/NUMBER.png` and `val/CLASS/NUMBER.png`.
fn write_cifar10(room: &Path, options: &Options<'_>) -> Result<(), Problem> {
    let names = room.join("batches.meta.txt");
    let names = fs::read_to_string(&names).map_err(|error| damaged(format!("batches.meta.txt: {error}")))?;
    let classes: Vec<&str> = names.split_whitespace().collect();
    let train = (1..=5).map(|batch| ("train", format!("data_batch_{batch}.bin")));
    let mut number = 0;
    for (split, file) in train.chain([("val", "test_batch.bin".to_owned())]) {
        let records = fs::read(room.join(&file)).map_err(|error| damaged(format!("{file}: {error}")))?;
        for record in records.chunks(1 + 3 * PLANE) {
            if (options.is_stopped)() {
                return Err(FetchError::Stopped { path: room.to_owned() }.into());
            }
            let class = classes.get(usize::from(record[0])).filter(|name| is_plain(name));
            let (Some(class), true) = (class, record.len() == 1 + 3 * PLANE) else {
                return Err(damaged(format!("{file} has a record of no class or length")));
            };
            let planes = &record[1..];
            let pixels = (0..PLANE).flat_map(|at| [planes[at], planes[PLANE + at], planes[2 * PLANE + at]]).collect();
            let folder = room.join(split).join(class);
            fs::create_dir_all(&folder).map_err(io_error(&folder, "create the folder"))?;
            let picture = Image { width: SIDE, height: SIDE, pixels };
            picture.write(&folder.join(format!("{number:05}.png")), FileFormat::Png).map_err(FetchError::from)?;
            number += 1;
        }
    }
    Ok(())
}

fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric())
}
