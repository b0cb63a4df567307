//! Labelled pictures in TFRecord shards, in the layout of TensorFlow's ImageNet scripts.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};

use super::{imagenet_classes, readable_class};
use crate::decode::{ColourMode, ImageFormat, decode_rgb, read_info, read_whole};
use crate::listing::Listing;
use crate::new_folder::Unfinished;
use crate::parallel::try_map;
use crate::record_shards::{MOST_SHARDS, ShardWriter, shard_name, shards_of};
use crate::tf_example::picture::{ENCODED, FILE_NAME, FORMAT, HEIGHT, SIDES, WIDTH};
use crate::tf_example::proto::Kind;
use crate::tf_example::{self, Features, Flaw, flaw};
use crate::tfrecord::RecordFile;
use crate::{
    DataError, Dataset, DecodeError, Exif, FileFormat, Image, ImageInfo, Label, Philox, Purpose, Scratch, ShareBox,
    Split, Stage, Transform, hex,
};

const EXPECTED: &str = "the features of ImageNet's records: image/encoded, image/class/label";
const LABEL: &str = "image/class/label";
/// Names of the classes beside the shards, a line each in the order of the labels.
const CLASSES: &str = "classes.txt";
/// Labels count from here: 0 is kept for a background.
const FIRST_LABEL: i64 = 1;
/// Quality of the JPEG files that pictures of other formats become.
const JPEG_QUALITY: u8 = 100;
const BOX_LABELS: &str = "image/object/bbox/label";

/// One split of a folder of shards: `train-NNNNN-of-NNNNN` or `validation-NNNNN-of-NNNNN`, with or without `.tfrecord`.
///
/// Records are `tf.train.Example` messages with a picture (`image/encoded`) and its label (`image/class/label`), 1 for the first class.
/// The classes are those of `classes.txt` beside the shards, or ImageNet's 1000 where there is no such file. Boxes around objects,
/// where a record has them, say what random crops of TensorFlow's form have to show.
#[derive(Debug)]
pub struct ImageRecords {
    shards: Vec<RecordFile>,
    /// Number of the first sample of each shard, and that of all samples.
    starts: Vec<usize>,
    classes: Vec<String>,
    split: Split,
    transform: Transform,
    exif: Exif,
}

impl ImageRecords {
    /// Finds the records of one split; no picture is read. `None` for a folder without shards of it.
    ///
    /// # Errors
    /// A missing or damaged shard; no record in them; a `classes.txt` that is no list of different names; a transform out of range.
    pub fn find(root: &Path, split: Split, transform: Transform) -> Result<Option<Self>, DataError> {
        transform.check()?;
        let paths = if root.is_dir() { shards_of(root, name_of(split))? } else { Vec::new() };
        if paths.is_empty() {
            return Ok(None);
        }
        let shards = try_map(paths.len(), paths.len().min(8), |shard| RecordFile::open(&paths[shard]))?;
        let records = Self::of_shards(root, shards, split, transform)?;
        if records.is_empty() {
            let layout = format!("shards {}-NNNNN-of-NNNNN with records", name_of(split));
            return Err(DataError::layout(root, "the shards have no record", layout));
        }
        Ok(Some(records))
    }

    /// The records of some shards of a folder.
    pub(super) fn of_shards(
        root: &Path,
        shards: Vec<RecordFile>,
        split: Split,
        transform: Transform,
    ) -> Result<Self, DataError> {
        let mut starts = vec![0];
        for shard in &shards {
            starts.push(starts.last().expect("begins with 0") + shard.len());
        }
        Ok(Self { shards, starts, classes: class_names(root)?, split, transform, exif: Exif::Ignore })
    }

    /// Decodes the picture of a record; returns its label and what it holds.
    pub(super) fn check(&self, index: usize, scratch: &mut Scratch) -> Result<(u32, ImageInfo), DataError> {
        let (shard, record) = self.record(index);
        let payload = shard.read(record)?;
        let ImageRecord { label, file, .. } = self.example(&payload).map_err(|flaw| self.error(index, flaw))?;
        let info = decode_rgb(&file, &mut scratch.pixels).map_err(|error| self.image_error(index, error))?;
        Ok((label, info))
    }

    /// The file that the record of sample `index` is in.
    pub(super) fn shard_path(&self, index: usize) -> &Path {
        self.record(index).0.path()
    }

    fn image_error(&self, index: usize, error: DecodeError) -> DataError {
        self.error(index, flaw(format!("the image: {error}"), "a whole image"))
    }

    /// Turns the images as `exif` asks; otherwise they stay as they are stored.
    pub fn oriented(self, exif: Exif) -> Self {
        Self { exif, ..self }
    }

    /// The shard of sample `index`, and the number of its record.
    fn record(&self, index: usize) -> (&RecordFile, usize) {
        let shard = self.starts.partition_point(|&start| start <= index) - 1;
        (&self.shards[shard], index - self.starts[shard])
    }

    fn error(&self, index: usize, flaw: Flaw) -> DataError {
        let (shard, record) = self.record(index);
        flaw.at(shard.path(), shard.place(record))
    }

    fn example(&self, payload: &[u8]) -> Result<ImageRecord, Flaw> {
        let mut features = Features::parse(payload, EXPECTED)?;
        let most = FIRST_LABEL - 1 + self.classes.len() as i64;
        let label = features.number(LABEL, FIRST_LABEL..=most)? - FIRST_LABEL;
        Ok(ImageRecord { label: label as u32, file: features.single(ENCODED)?, objects: objects_of(&mut features)? })
    }
}

/// What is used of a record.
struct ImageRecord {
    /// From 0.
    label: u32,
    /// The picture file.
    file: Vec<u8>,
    objects: Vec<ShareBox>,
}

/// The boxes of a record; none where it has no such features.
fn objects_of(features: &mut Features) -> Result<Vec<ShareBox>, Flaw> {
    if !SIDES.iter().any(|side| features.has(side)) {
        return Ok(Vec::new());
    }
    let first = features.float_list(&[SIDES[0]])?;
    let count = first.len();
    let mut objects: Vec<ShareBox> = first.into_iter().map(|side| [side, 0.0, 0.0, 0.0]).collect();
    for (number, side) in SIDES.iter().enumerate().skip(1) {
        let values = features.floats(&[side], count)?;
        objects.iter_mut().zip(values).for_each(|(object, value)| object[number] = value);
    }
    match objects.iter().flatten().find(|&side| !(0.0..=1.0).contains(side)) {
        Some(side) => Err(flaw(format!("a box has the side {side}"), "0 to 1, as shares of the picture")),
        None => Ok(objects),
    }
}

impl Dataset for ImageRecords {
    type Target = Label;

    fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or_default()
    }

    fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn image_size(&self, _: usize) -> [usize; 2] {
        [self.transform.size() as usize; 2]
    }

    fn load(&self, index: usize, rng: &mut Philox, scratch: &mut Scratch, out: &mut [u8]) -> Result<Label, DataError> {
        let (shard, record) = self.record(index);
        scratch.clock.start();
        let payload = shard.read(record)?;
        let ImageRecord { label, file, objects } = self.example(&payload).map_err(|flaw| self.error(index, flaw))?;
        scratch.file = file;
        scratch.clock.end(Stage::Read);
        let drawn = self.transform.draw_file(scratch, &objects, self.exif, rng, out);
        drawn.map_err(|error| self.image_error(index, error))?;
        Ok(Label(label))
    }

    fn source(&self, index: usize) -> String {
        let (shard, record) = self.record(index);
        format!("{}: {}", shard.path().display(), shard.place(record))
    }

    /// A hash over length and checksum of every record and the names of the classes, and whether images are turned.
    fn identity(&self) -> String {
        let hasher = self.shards.iter().fold(Sha256::new(), |hasher, shard| hasher.chain_update(shard.hash()));
        let hash = hasher.chain_update(self.classes.join("\n")).finalize();
        format!("image-records:{}:sha256:{}{}", self.split.name(), hex(&hash), self.exif.identity())
    }
}

/// The name of a split in shards.
pub(super) fn name_of(split: Split) -> &'static str {
    match split {
        Split::Train => "train",
        Split::Val => "validation",
    }
}

fn class_names(root: &Path) -> Result<Vec<String>, DataError> {
    let path = root.join(CLASSES);
    if !path.exists() {
        return Ok(imagenet_classes().iter().map(|class| class.id.to_owned()).collect());
    }
    let text = fs::read_to_string(&path).map_err(DataError::io(&path, "read the file"))?;
    let names: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut sorted = names.clone();
    sorted.sort();
    sorted.dedup();
    if names.is_empty() || sorted.len() < names.len() || names.iter().any(String::is_empty) {
        return Err(DataError::layout(&path, "not a list of different names", "the name of a class in each line"));
    }
    Ok(names)
}

/// Shards to write from a [`ClassFolder`](crate::ClassFolder): `train-NNNNN-of-NNNNN` and `validation-NNNNN-of-NNNNN`, and `classes.txt`.
///
/// Pictures are in a random order that `seed` decides. JPEG files of grey or RGB pixels are written as they are, all others as RGB JPEG
/// files of quality 100.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordsOfFolder {
    /// Folder with `train/CLASS/` and `val/CLASS/`.
    pub folder: PathBuf,
    /// Folder to write to, new or empty.
    pub out: PathBuf,
    /// Files of the training half [default: as many as ImageNet would have 1024 of].
    pub train_shards: Option<usize>,
    /// Files of the other half [default: as many as ImageNet would have 128 of].
    pub val_shards: Option<usize>,
    /// Seed of the order.
    pub seed: u64,
    /// Threads that read and write.
    pub threads: usize,
}

/// What was written of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenImages {
    /// The split.
    pub split: Split,
    /// Records.
    pub images: usize,
    /// Those that are not the bytes of their files.
    pub converted: usize,
    /// Files.
    pub shards: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// Pictures of a shard of ImageNet's training and validation half.
const USUAL_SHARD: [usize; 2] = [1_281_167 / 1024, 50_000 / 128];

impl RecordsOfFolder {
    /// Writes both splits. What fails or is stopped leaves nothing behind.
    ///
    /// `progress` is reported pictures done and pictures in all from any of the threads; `stop` is asked before each picture.
    ///
    /// # Errors
    /// A folder that is none of classes, or not empty; a number of shards outside its range; a picture that cannot be read.
    pub fn write(
        &self,
        progress: &(dyn Fn(usize, usize) + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<[WrittenImages; 2], DataError> {
        let sets = [Listing::open(&self.folder, Split::Train)?, Listing::open(&self.folder, Split::Val)?];
        let asked = [("shards", self.train_shards), ("val-shards", self.val_shards)];
        let mut counts = [0; 2];
        for (half, (set, (option, shards))) in sets.iter().zip(asked).enumerate() {
            let most = set.len().min(MOST_SHARDS);
            counts[half] = shards.unwrap_or((set.len() / USUAL_SHARD[half]).max(1));
            if !(1..=most).contains(&counts[half]) {
                let allowed = format!("1 to {most}, as there are {} pictures", set.len());
                return Err(DataError::option(option, counts[half], allowed));
            }
        }
        let unfinished = Unfinished::in_empty(&self.out)?;
        let all = sets.iter().map(Listing::len).sum();
        let done = AtomicUsize::new(0);
        let advance = || progress(done.fetch_add(1, Ordering::Relaxed) + 1, all);
        let [train, val] = &sets;
        let write = |split, set, shards| self.write_split(split, set, shards, &advance, stop);
        let written = [write(Split::Train, train, counts[0])?, write(Split::Val, val, counts[1])?];
        let classes = self.out.join(CLASSES);
        let names = train.classes().join("\n") + "\n";
        fs::write(&classes, names).map_err(DataError::writing(&classes, "write the file"))?;
        unfinished.keep();
        Ok(written)
    }

    fn write_split(
        &self,
        split: Split,
        set: &Listing,
        shards: usize,
        advance: &(dyn Fn() + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<WrittenImages, DataError> {
        let mut order: Vec<usize> = (0..set.len()).collect();
        Purpose::Shuffle.stream(self.seed, 0, 0).shuffle(&mut order);
        let write_shard = |shard: usize| {
            let name = shard_name(name_of(split), shard, shards);
            let mut file = ShardWriter::create(self.out.join(name))?;
            let mut converted = 0;
            for &index in order.iter().skip(shard).step_by(shards) {
                if stop() {
                    return Err(DataError::Stopped { path: self.out.clone() });
                }
                let picture = Picture::read(&set.path(index))?;
                converted += usize::from(picture.is_converted);
                let class = &set.classes()[set.label(index) as usize];
                file.add(&picture.encode(set.label(index), class))?;
                advance();
            }
            Ok((converted, file.finish()?))
        };
        let files = try_map(shards, self.threads, write_shard)?;
        Ok(WrittenImages {
            split,
            images: set.len(),
            converted: files.iter().map(|(converted, _)| converted).sum(),
            shards,
            bytes: files.iter().map(|(_, bytes)| bytes).sum(),
        })
    }
}

/// A picture as a record has it: a JPEG file of grey or RGB pixels.
struct Picture {
    name: String,
    file: Vec<u8>,
    size: [u32; 2],
    is_converted: bool,
}

impl Picture {
    fn read(path: &Path) -> Result<Self, DataError> {
        let image_error = |source| DataError::Image { path: path.to_owned(), source };
        let mut file = Vec::new();
        read_whole(path, &mut file)?;
        let info = read_info(&file).map_err(image_error)?;
        let is_converted = info.format != ImageFormat::Jpeg || !matches!(info.mode, ColourMode::Grey | ColourMode::Rgb);
        if is_converted {
            let mut pixels = Vec::new();
            decode_rgb(&file, &mut pixels).map_err(image_error)?;
            let image = Image { width: info.width as usize, height: info.height as usize, pixels };
            file = image.encode(path, FileFormat::Jpeg(JPEG_QUALITY))?;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, file, size: [info.height, info.width], is_converted })
    }

    /// The message, with a label from 0 and the name of its folder.
    fn encode(self, label: u32, class: &str) -> Vec<u8> {
        let number = |value: i64| Kind::integers(vec![value]);
        let [height, width] = self.size;
        let no_boxes = SIDES.map(|side| (side, Kind::floats(Vec::new())));
        let features = [
            (HEIGHT, number(height.into())),
            (WIDTH, number(width.into())),
            ("image/channels", number(3)),
            ("image/colorspace", Kind::text("RGB")),
            (FORMAT, Kind::text("JPEG")),
            (FILE_NAME, Kind::text(self.name)),
            (LABEL, number(i64::from(label) + FIRST_LABEL)),
            ("image/class/synset", Kind::text(class)),
            ("image/class/text", Kind::text(readable_class(class))),
            (BOX_LABELS, Kind::integers(Vec::new())),
            (ENCODED, Kind::bytes(vec![self.file])),
        ];
        tf_example::encode(features.into_iter().chain(no_boxes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::ShapesFolder;
    use crate::{ClassFolder, CropDraw, RandomResizedCrop, ResizeCentreCrop};
    use std::collections::BTreeMap;

    const EVAL: Transform = Transform::Eval(ResizeCentreCrop::antialiased(32, 32));

    fn prepared(format: FileFormat) -> (tempfile::TempDir, [WrittenImages; 2]) {
        let root = tempfile::tempdir().unwrap();
        let (folder, out) = (root.path().join("folder"), root.path().join("records"));
        ShapesFolder { seed: 1, train: 24, val: 20, size: 32, format }.write(&folder).unwrap();
        let records = RecordsOfFolder { folder, out, train_shards: Some(3), val_shards: None, seed: 5, threads: 2 };
        let written = records.write(&|_, _| {}, &|| false).unwrap();
        (root, written)
    }

    fn samples(set: &dyn Dataset<Target = Label>) -> BTreeMap<(u32, Vec<u8>), usize> {
        let mut all = BTreeMap::new();
        for index in 0..set.len() {
            let mut pixels = vec![0; 32 * 32 * 3];
            let mut rng = Purpose::Augment.stream(0, 0, index as u64);
            let Label(label) = set.load(index, &mut rng, &mut Scratch::default(), &mut pixels).unwrap();
            *all.entry((label, pixels)).or_default() += 1;
        }
        all
    }

    #[test]
    fn records_hold_the_samples_of_the_folder() {
        let (root, [train, val]) = prepared(FileFormat::Jpeg(90));
        assert_eq!((train.images, train.shards, train.converted), (24, 3, 0));
        assert_eq!((val.images, val.shards, val.converted), (20, 1, 0));
        let records = root.path().join("records");
        assert!(records.join("validation-00000-of-00001.tfrecord").is_file());
        for split in [Split::Train, Split::Val] {
            let read = ImageRecords::find(&records, split, EVAL).unwrap().expect("shards are there");
            assert!(ImageRecords::find(&root.path().join("folder"), split, EVAL).unwrap().is_none());
            let folder = ClassFolder::open(root.path().join("folder"), split, EVAL).unwrap();
            assert_eq!(read.class_names(), folder.class_names());
            assert_eq!(samples(&read), samples(&folder));
        }
        let labels = |split| {
            let set = ImageRecords::find(&records, split, EVAL).unwrap().unwrap();
            samples(&set).into_keys().map(|(label, _)| label).collect::<Vec<_>>()
        };
        assert_eq!(labels(Split::Train).first(), Some(&0));
    }

    #[test]
    fn other_formats_become_jpeg() {
        let (root, [train, _]) = prepared(FileFormat::Png);
        assert_eq!(train.converted, 24);
        let set = ImageRecords::find(&root.path().join("records"), Split::Train, EVAL).unwrap().unwrap();
        let (shard, record) = set.record(23);
        let ImageRecord { file, .. } = set.example(&shard.read(record).unwrap()).unwrap();
        assert_eq!(read_info(&file).unwrap().format, ImageFormat::Jpeg);
    }

    /// A record of a picture with one object, whose sides are these.
    fn with_object(sides: [Vec<f32>; 4]) -> Vec<u8> {
        let mut image = Image::filled(40, 30, [0; 3]);
        image.pixels.iter_mut().zip(0..).for_each(|(pixel, number)| *pixel = (number / 3 % 40 * 6) as u8);
        let file = image.encode(Path::new("drawn.png"), FileFormat::Png).unwrap();
        let features = [(LABEL, Kind::integers(vec![1])), (ENCODED, Kind::bytes(vec![file]))];
        tf_example::encode(features.into_iter().chain(SIDES.into_iter().zip(sides.map(Kind::floats))))
    }

    #[test]
    fn crops_of_tensorflow_show_the_objects_of_a_record() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("train-00000-of-00001");
        let mut file = ShardWriter::create(path).unwrap();
        let last_columns = [0.9, 0.0, 1.0, 1.0].map(|side| vec![side]);
        for sides in [last_columns, Default::default(), [0.5, 0.1, 0.5, 0.9].map(|side| vec![side])] {
            file.add(&with_object(sides)).unwrap();
        }
        file.finish().unwrap();
        let crop = RandomResizedCrop { scale: (0.05, 1.0), flip: 0.0, ..RandomResizedCrop::imagenet(8) };
        // The brightest columns that crops show: object, none, one without pixels, for which the whole picture is taken.
        for (draw, all_bright) in [(CropDraw::Tensorflow, [true, false, true]), (CropDraw::Torch, [false; 3])] {
            let transform = Transform::Train(RandomResizedCrop { draw, ..crop });
            let set = ImageRecords::find(root.path(), Split::Train, transform).unwrap().unwrap();
            let shows_the_last = |record: usize, seed: u64| {
                let mut pixels = vec![0; 8 * 8 * 3];
                let mut rng = Purpose::Augment.stream(seed, 0, 0);
                set.load(record, &mut rng, &mut Scratch::default(), &mut pixels).unwrap();
                pixels.iter().max() > Some(&200)
            };
            let found = [0, 1, 2].map(|record| (0..200).all(|seed| shows_the_last(record, seed)));
            assert_eq!(found, all_bright, "{draw:?}");
        }
    }

    #[test]
    fn boxes_that_are_none_are_told() {
        let (root, _) = prepared(FileFormat::Jpeg(90));
        let set = ImageRecords::find(&root.path().join("records"), Split::Train, EVAL).unwrap().unwrap();
        for (sides, expected) in [
            ([vec![0.0], vec![0.0], vec![1.5], vec![1.0]], "a box has the side 1.5"),
            ([vec![f32::NAN], vec![0.0], vec![1.0], vec![1.0]], "a box has the side NaN"),
            ([vec![0.0], vec![0.0], vec![1.0], vec![]], "`image/object/bbox/ymax` has 0 values"),
        ] {
            let error = set.example(&with_object(sides)).err().unwrap();
            assert!(error.problem.contains(expected), "{}", error.problem);
        }
    }

    #[test]
    fn without_a_list_the_classes_are_those_of_imagenet() {
        let (root, _) = prepared(FileFormat::Jpeg(90));
        let records = root.path().join("records");
        fs::remove_file(records.join(CLASSES)).unwrap();
        let set = ImageRecords::find(&records, Split::Val, EVAL).unwrap().unwrap();
        assert_eq!((set.class_names().len(), &set.class_names()[0][..]), (1000, "n01440764"));
        fs::write(records.join(CLASSES), "a\nb\na\n").unwrap();
        let error = ImageRecords::find(&records, Split::Val, EVAL).unwrap_err().to_string();
        assert!(error.contains("not a list of different names"), "{error}");
        fs::write(records.join(CLASSES), "only\n").unwrap();
        let set = ImageRecords::find(&records, Split::Val, EVAL).unwrap().unwrap();
        let load =
            |index| set.load(index, &mut Purpose::Augment.stream(0, 0, 0), &mut Scratch::default(), &mut [0; 3072]);
        let error = (0..set.len()).find_map(|index| load(index).err()).unwrap().to_string();
        assert!(error.contains("validation-00000-of-00001.tfrecord: record") && error.contains("one number of 1 to 1"));
    }

    #[test]
    fn what_is_stopped_or_refused_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (folder, out) = (root.path().join("folder"), root.path().join("new/records"));
        let format = FileFormat::Jpeg(90);
        ShapesFolder { seed: 1, train: 24, val: 20, size: 32, format }.write(&folder).unwrap();
        let records = RecordsOfFolder { folder, out, train_shards: None, val_shards: Some(21), seed: 5, threads: 1 };
        let error = records.write(&|_, _| {}, &|| false).unwrap_err().to_string();
        assert!(error.contains("val-shards") && error.contains("1 to 20"), "{error}");
        let records = RecordsOfFolder { val_shards: None, ..records };
        let calls = AtomicUsize::new(0);
        let error = records.write(&|_, _| {}, &|| calls.fetch_add(1, Ordering::Relaxed) > 30).unwrap_err();
        assert!(matches!(error, DataError::Stopped { .. }));
        assert!(!root.path().join("new").exists());
        let records = RecordsOfFolder { out: root.path().to_owned(), ..records };
        assert!(records.write(&|_, _| {}, &|| false).unwrap_err().to_string().contains("not empty"));
        assert!(root.path().join("folder/train").is_dir());
    }
}
