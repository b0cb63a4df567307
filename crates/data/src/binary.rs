//! Labelled pictures of one size in a file of pixels for each split: small sets that are read without decoding.
//!
//! All numbers are little endian:
//!
//! | byte | bytes | content |
//! |---|---|---|
//! | 0 | 8 | `BSMRPICS` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | height `H` |
//! | 16 | 4 | width `W` |
//! | 20 | 4 | channels, 3 |
//! | 24 | 4 | classes `C` |
//! | 28 | 4 | CRC-32C of `classes.txt` beside the file, which has a name in each of `C` lines |
//! | 32 | 8 | records `N` |
//! | 40 | 4 | CRC-32C of the checksums of all records, in their order |
//! | 44 | 4 | CRC-32C of all before |
//! | 48 | `N` x (8 + `H` x `W` x 3) | records |
//!
//! A record is its label (4 bytes, 0 to `C` - 1), the CRC-32C of label and pixels (4 bytes), and the pixels: rows from the top, pixels from
//! the left, red, green and blue.

use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};

use crate::decode::exif::Exif;
use crate::listing::Listing;
use crate::new_folder::Unfinished;
use crate::parallel::try_map;
use crate::positioned::read_at;
use crate::{
    DataError, Dataset, FilePosition, Image, Label, Philox, ResizeCentreCrop, Scratch, Split, Stage, Transform, hex,
};

const MAGIC: &[u8; 8] = b"BSMRPICS";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 48;
/// Label and checksum before the pixels of a record.
const RECORD_HEAD: usize = 8;
const CHANNELS: u32 = 3;
const MAX_SIDE: u32 = 4096;
const CLASSES: &str = "classes.txt";
const EXPECTED: &str = "a file of pictures of this version, as `data prepare binary` writes it";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    height: u32,
    width: u32,
    classes: u32,
    /// CRC-32C of the file of names.
    names: u32,
    records: u64,
    /// CRC-32C of the checksums of all records.
    content: u32,
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [VERSION, self.height, self.width, CHANNELS, self.classes, self.names] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.records.to_le_bytes());
        bytes.extend(self.content.to_le_bytes());
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, String> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let records = u64::from_le_bytes(bytes[32..40].try_into().expect("8 bytes"));
        if bytes[..8] != *MAGIC {
            return Err("not a file of pictures: it does not begin with `BSMRPICS`".to_owned());
        }
        if word(8) != VERSION {
            return Err(format!("of version {}", word(8)));
        }
        if crc32c::crc32c(&bytes[..44]) != word(44) {
            return Err("the header does not fit its checksum".to_owned());
        }
        let header =
            Self { height: word(12), width: word(16), classes: word(24), names: word(28), records, content: word(40) };
        let sides = 1..=MAX_SIDE;
        let fits = sides.contains(&header.height) && sides.contains(&header.width) && word(20) == CHANNELS;
        if !fits || header.classes == 0 || records == 0 {
            let Header { height, width, classes, .. } = header;
            return Err(format!("{records} pictures of {height}x{width}x{}, {classes} classes", word(20)));
        }
        Ok(header)
    }

    fn record_bytes(&self) -> usize {
        RECORD_HEAD + self.height as usize * self.width as usize * CHANNELS as usize
    }

    /// Length of the file, or `None` if it is out of range.
    fn file_bytes(&self) -> Option<u64> {
        self.records.checked_mul(self.record_bytes() as u64)?.checked_add(HEADER_BYTES as u64)
    }
}

/// One split of a folder with `train.bin` and `val.bin`.
#[derive(Debug)]
pub struct BinaryImages {
    path: PathBuf,
    file: File,
    header: Header,
    classes: Vec<String>,
    split: Split,
    transform: Transform,
}

impl BinaryImages {
    /// Finds the file of one split; no picture is read. `None` for a folder with neither of the two files.
    ///
    /// # Errors
    /// A missing, truncated or damaged file; names of classes that are not those of the file; a transform out of range.
    pub fn find(root: &Path, split: Split, transform: Transform) -> Result<Option<Self>, DataError> {
        transform.check()?;
        let path = |split: Split| root.join(file_name(split));
        if ![Split::Train, Split::Val].into_iter().any(|split| path(split).is_file()) {
            return Ok(None);
        }
        Self::open(root, split, transform).map(Some)
    }

    fn open(root: &Path, split: Split, transform: Transform) -> Result<Self, DataError> {
        let path = root.join(file_name(split));
        if !path.is_file() {
            return Err(DataError::layout(&path, "no such file", "train.bin and val.bin of one data set"));
        }
        let file = File::open(&path).map_err(DataError::io(&path, "open the file"))?;
        let bytes = file.metadata().map_err(DataError::io(&path, "look at the file"))?.len();
        if bytes < HEADER_BYTES as u64 {
            return Err(DataError::layout(&path, format!("the file has {bytes} bytes"), EXPECTED));
        }
        let mut header = [0; HEADER_BYTES];
        read_at(&file, &mut header, 0).map_err(DataError::io(&path, "read the file"))?;
        let header = Header::decode(&header).map_err(|problem| DataError::layout(&path, problem, EXPECTED))?;
        if header.file_bytes() != Some(bytes) {
            let Header { records, height, width, .. } = header;
            let expected = header.file_bytes().map_or_else(String::new, |bytes| format!("{bytes} bytes: "));
            let expected = format!("{expected}{records} pictures of {height}x{width}, as its header says");
            return Err(DataError::layout(&path, format!("the file has {bytes} bytes"), expected));
        }
        let classes = class_names(root, &path, &header)?;
        Ok(Self { path, file, header, classes, split, transform })
    }

    /// Height and width of the pictures in the file.
    pub(crate) fn stored_size(&self) -> [u32; 2] {
        [self.header.height, self.header.width]
    }

    /// Where the file lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn place(&self, index: usize) -> FilePosition {
        FilePosition::Record { number: index + 1, byte: self.offset(index) }
    }

    fn offset(&self, index: usize) -> u64 {
        (HEADER_BYTES + index * self.header.record_bytes()) as u64
    }

    /// Reads record `index` to `record`, which then has its pixels from byte 8 on; returns label and checksum.
    pub(crate) fn read(&self, index: usize, record: &mut Vec<u8>) -> Result<(u32, u32), DataError> {
        record.resize(self.header.record_bytes(), 0);
        read_at(&self.file, record, self.offset(index)).map_err(DataError::io(&self.path, "read a record"))?;
        let word = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("4 bytes"));
        let (label, checksum) = (word(0), word(4));
        let problem =
            |problem: String, expected: &str| Err(DataError::content(&self.path, self.place(index), problem, expected));
        if record_checksum(label, &record[RECORD_HEAD..]) != checksum {
            return problem("the record does not fit its checksum".to_owned(), "an undamaged record");
        }
        if label >= self.header.classes {
            return problem(format!("the label is {label}"), &format!("a label below {}", self.header.classes));
        }
        Ok((label, checksum))
    }

    /// Whether the header's checksum of all records is that of these checksums of records.
    pub(crate) fn has_content(&self, checksums: &[u32]) -> bool {
        content_checksum(checksums.iter().copied()) == self.header.content
    }
}

impl Dataset for BinaryImages {
    type Target = Label;

    fn len(&self) -> usize {
        self.header.records as usize
    }

    fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn image_size(&self, _: usize) -> [usize; 2] {
        [self.transform.size() as usize; 2]
    }

    fn load(&self, index: usize, rng: &mut Philox, scratch: &mut Scratch, out: &mut [u8]) -> Result<Label, DataError> {
        scratch.clock.start();
        let (label, _) = self.read(index, &mut scratch.file)?;
        scratch.pixels.clear();
        scratch.pixels.extend_from_slice(&scratch.file[RECORD_HEAD..]);
        scratch.clock.end(Stage::Read);
        self.transform.draw_pixels(self.stored_size(), scratch, rng, out);
        Ok(Label(label))
    }

    fn source(&self, index: usize) -> String {
        format!("{}: {}", self.path.display(), self.place(index))
    }

    /// A hash over the header, which holds checksums of all records and of the names of the classes.
    fn identity(&self) -> String {
        format!("binary:{}:sha256:{}", self.split.name(), hex(&Sha256::digest(self.header.encode())))
    }
}

fn file_name(split: Split) -> String {
    format!("{}.bin", split.name())
}

fn record_checksum(label: u32, pixels: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&label.to_le_bytes()), pixels)
}

fn content_checksum(checksums: impl Iterator<Item = u32>) -> u32 {
    checksums.fold(0, |content, checksum| crc32c::crc32c_append(content, &checksum.to_le_bytes()))
}

fn class_names(root: &Path, file: &Path, header: &Header) -> Result<Vec<String>, DataError> {
    let path = root.join(CLASSES);
    let text = fs::read_to_string(&path).map_err(DataError::io(&path, "read the file"))?;
    let names: Vec<String> = text.lines().map(str::to_owned).collect();
    if crc32c::crc32c(text.as_bytes()) != header.names || names.len() != header.classes as usize {
        let expected = format!("the names of the {} classes of {}", header.classes, file.display());
        return Err(DataError::layout(&path, "the names do not fit their checksum in the pictures' file", expected));
    }
    Ok(names)
}

/// Files `train.bin`, `val.bin` and `classes.txt` to write from a [`ClassFolder`](crate::ClassFolder), in its order.
///
/// The short side of each picture is resized, and the centre cut out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinaryOfFolder {
    /// Folder with `train/CLASS/` and `val/CLASS/`.
    pub folder: PathBuf,
    /// Folder to write to, new or empty.
    pub out: PathBuf,
    /// Height and width of the pictures that are written.
    pub size: u32,
    /// What is done with the EXIF orientation of pictures.
    pub exif: Exif,
    /// Threads that read pictures.
    pub threads: usize,
}

/// What was written of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenBinary {
    /// The split.
    pub split: Split,
    /// Records.
    pub images: usize,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Pictures in memory at a time.
const CHUNK: usize = 256;

impl BinaryOfFolder {
    /// Writes both splits. What fails or is stopped leaves nothing behind.
    ///
    /// `progress` is reported pictures done and pictures in all from any of the threads; `stop` is asked before each picture.
    ///
    /// # Errors
    /// A folder that is none of classes, or not empty; a size out of range; a picture that cannot be read.
    pub fn write(
        &self,
        progress: &(dyn Fn(usize, usize) + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<[WrittenBinary; 2], DataError> {
        let crop = ResizeCentreCrop::antialiased(self.size, self.size);
        Transform::Eval(crop).check()?;
        let open = |split| Listing::open(&self.folder, split);
        let (train, val) = (open(Split::Train)?, open(Split::Val)?);
        let unfinished = Unfinished::in_empty(&self.out)?;
        let all = train.len() + val.len();
        let done = AtomicUsize::new(0);
        let advance = || progress(done.fetch_add(1, Ordering::Relaxed) + 1, all);
        let names = train.classes().join("\n") + "\n";
        let header = Header {
            height: self.size,
            width: self.size,
            classes: train.classes().len() as u32,
            names: crc32c::crc32c(names.as_bytes()),
            records: 0,
            content: 0,
        };
        let record = |set: &Listing, index: usize| {
            if stop() {
                return Err(DataError::Stopped { path: self.out.clone() });
            }
            let (label, picture) = (set.label(index), Image::read_oriented(&set.path(index), self.exif)?);
            let pixels = crop.apply(&picture).pixels;
            let checksum = record_checksum(label, &pixels);
            advance();
            Ok((checksum, [&label.to_le_bytes()[..], &checksum.to_le_bytes(), &pixels].concat()))
        };
        let write = |split, set: &Listing| {
            let header = Header { records: set.len() as u64, ..header };
            self.write_split(split, header, &|index| record(set, index))
        };
        let written = [write(Split::Train, &train)?, write(Split::Val, &val)?];
        let classes = self.out.join(CLASSES);
        fs::write(&classes, names).map_err(DataError::writing(&classes, "write the file"))?;
        unfinished.keep();
        Ok(written)
    }

    /// Writes the records, and then the header.
    fn write_split(
        &self,
        split: Split,
        header: Header,
        record: &(dyn Fn(usize) -> Result<(u32, Vec<u8>), DataError> + Sync),
    ) -> Result<WrittenBinary, DataError> {
        let path = self.out.join(file_name(split));
        let failed = || DataError::writing(&path, "write the file");
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&path).map_err(failed())?);
        file.write_all(&[0; HEADER_BYTES]).map_err(failed())?;
        let images = header.records as usize;
        let mut checksums = Vec::with_capacity(images);
        for start in (0..images).step_by(CHUNK) {
            let count = CHUNK.min(images - start);
            for (checksum, bytes) in try_map(count, self.threads, |index| record(start + index))? {
                checksums.push(checksum);
                file.write_all(&bytes).map_err(failed())?;
            }
        }
        let header = Header { content: content_checksum(checksums.into_iter()), ..header };
        file.seek(SeekFrom::Start(0)).map_err(failed())?;
        file.write_all(&header.encode()).map_err(failed())?;
        let written = file.into_inner().map_err(|error| error.into_error()).and_then(|file| file.sync_all());
        written.map_err(failed())?;
        Ok(WrittenBinary { split, images, bytes: header.file_bytes().unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::ShapesFolder;
    use crate::{ClassFolder, FileFormat, Purpose, RandomResizedCrop};

    const EVAL: Transform = Transform::Eval(ResizeCentreCrop::antialiased(24, 24));

    fn prepared(size: u32) -> (tempfile::TempDir, PathBuf, [WrittenBinary; 2]) {
        let root = tempfile::tempdir().unwrap();
        let (folder, out) = (root.path().join("folder"), root.path().join("binary"));
        let format = FileFormat::Jpeg(90);
        ShapesFolder { seed: 1, train: 24, val: 20, size: 40, format }.write(&folder).unwrap();
        let set = BinaryOfFolder { folder, out: out.clone(), size, exif: Exif::Ignore, threads: 2 };
        let written = set.write(&|_, _| {}, &|| false).unwrap();
        (root, out, written)
    }

    fn load(set: &dyn Dataset<Target = Label>, index: usize) -> Result<(u32, Vec<u8>), DataError> {
        let [height, width] = set.image_size(index);
        let mut pixels = vec![0; height * width * 3];
        let mut rng = Purpose::Augment.stream(0, 0, index as u64);
        let Label(label) = set.load(index, &mut rng, &mut Scratch::default(), &mut pixels)?;
        Ok((label, pixels))
    }

    #[test]
    fn records_hold_the_samples_of_the_folder() {
        let (root, out, [train, val]) = prepared(24);
        let bytes = |images: u64| 48 + images * (8 + 24 * 24 * 3);
        assert_eq!((train.images, train.bytes, val.images, val.bytes), (24, bytes(24), 20, bytes(20)));
        assert_eq!(fs::metadata(out.join("train.bin")).unwrap().len(), train.bytes);
        for split in [Split::Train, Split::Val] {
            let set = BinaryImages::find(&out, split, EVAL).unwrap().expect("the files are there");
            let folder = ClassFolder::open(root.path().join("folder"), split, EVAL).unwrap();
            assert_eq!((set.class_names(), set.len()), (folder.class_names(), folder.len()));
            for index in 0..set.len() {
                assert!(load(&set, index).unwrap() == load(&folder, index).unwrap(), "{index}");
            }
        }
        let crop = Transform::Train(RandomResizedCrop::imagenet(16));
        let set = BinaryImages::find(&out, Split::Train, crop).unwrap().unwrap();
        assert_eq!(load(&set, 3).unwrap().1.len(), 16 * 16 * 3);
        assert!(BinaryImages::find(&root.path().join("folder"), Split::Train, EVAL).unwrap().is_none());
    }

    /// The header as documented, byte by byte.
    #[test]
    fn bytes_are_where_the_table_says() {
        let (_root, out, _) = prepared(24);
        let bytes = fs::read(out.join("val.bin")).unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((&bytes[..8], word(8), word(12), word(16), word(20)), (&b"BSMRPICS"[..], 1, 24, 24, 3));
        let names = fs::read(out.join("classes.txt")).unwrap();
        assert_eq!((word(24), word(28), word(32), word(36)), (10, crc32c::crc32c(&names), 20, 0));
        let record = |index: usize| 48 + index * (8 + 24 * 24 * 3);
        let checksums: Vec<u8> = (0..20).flat_map(|index| bytes[record(index) + 4..][..4].to_vec()).collect();
        assert_eq!((word(40), word(44)), (crc32c::crc32c(&checksums), crc32c::crc32c(&bytes[..44])));
        let content = [&bytes[record(7)..][..4], &bytes[record(7) + 8..record(8)]].concat();
        assert_eq!(word(record(7) + 4), crc32c::crc32c(&content));
        let set = BinaryImages::find(&out, Split::Val, EVAL).unwrap().unwrap();
        assert_eq!(load(&set, 7).unwrap(), (word(record(7)), bytes[record(7) + 8..record(8)].to_vec()));
    }

    #[test]
    fn what_is_damaged_is_named() {
        let (_root, out, _) = prepared(8);
        let path = out.join("val.bin");
        let good = fs::read(&path).unwrap();
        let says = |bytes: &[u8], parts: &[&str]| {
            fs::write(&path, bytes).unwrap();
            let opened = BinaryImages::find(&out, Split::Val, EVAL);
            let loaded = opened.and_then(|set| {
                let set = set.expect("the file is there");
                (0..set.len()).try_for_each(|index| load(&set, index).map(|_| ()))
            });
            let error = loaded.unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)) && error.contains("val.bin"), "{error}");
        };
        let changed = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        /// The header with a checksum that fits.
        fn signed(mut bytes: Vec<u8>) -> Vec<u8> {
            let checksum = crc32c::crc32c(&bytes[..44]).to_le_bytes();
            bytes[44..48].copy_from_slice(&checksum);
            bytes
        }
        says(&good[..30], &["has 30 bytes", "data prepare binary"]);
        says(&good[..good.len() - 1], &["bytes; expected", "20 pictures of 8x8"]);
        says(&changed(0, b'X'), &["does not begin with `BSMRPICS`"]);
        says(&changed(8, 2), &["of version 2"]);
        says(&changed(12, 9), &["the header does not fit its checksum"]);
        says(&signed(changed(20, 4)), &["20 pictures of 8x8x4"]);
        says(&signed(changed(24, 11)), &["classes.txt", "do not fit", "11 classes"]);
        let record = 48 + 2 * (8 + 8 * 8 * 3);
        says(
            &changed(record + 50, good[record + 50] ^ 1),
            &["record 3 at byte 448: the record does not fit its checksum"],
        );
        let mut labelled = changed(record, 10);
        let checksum = record_checksum(10, &labelled[record + 8..record + 8 + 192]).to_le_bytes();
        labelled[record + 4..record + 8].copy_from_slice(&checksum);
        says(&labelled, &["record 3", "the label is 10; expected a label below 10"]);
        fs::write(&path, &good).unwrap();
        fs::write(out.join("classes.txt"), "others\n").unwrap();
        says(&good, &["classes.txt", "do not fit"]);
        fs::remove_file(&path).unwrap();
        let error = BinaryImages::find(&out, Split::Val, EVAL).unwrap_err().to_string();
        assert!(error.contains("val.bin: no such file"), "{error}");
    }

    #[test]
    fn what_is_stopped_or_refused_leaves_nothing() {
        let (root, out, _) = prepared(8);
        let set = BinaryOfFolder {
            folder: root.path().join("folder"),
            out: root.path().join("new/set"),
            size: 0,
            exif: Exif::Ignore,
            threads: 1,
        };
        assert!(set.write(&|_, _| {}, &|| false).unwrap_err().to_string().contains("image size is 0"));
        let set = BinaryOfFolder { size: 8, ..set };
        let calls = AtomicUsize::new(0);
        let error = set.write(&|_, _| {}, &|| calls.fetch_add(1, Ordering::Relaxed) > 30).unwrap_err();
        assert!(matches!(error, DataError::Stopped { .. }));
        assert!(!root.path().join("new").exists());
        let set = BinaryOfFolder { out: out.clone(), ..set };
        assert!(set.write(&|_, _| {}, &|| false).unwrap_err().to_string().contains("not empty"));
        assert!(out.join("train.bin").is_file());
    }
}
