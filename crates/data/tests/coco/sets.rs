//! Data sets to train on: from annotations and images, and from the shards made of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bessemer_data::coco::{CategoryIds, CocoOptions, CocoRecords, CocoSet, CocoSource, Instances, verify};
use bessemer_data::detection::{Framing, ObjectLayout, Objects};
use bessemer_data::shapes::{CocoFolder, Scenes};
use bessemer_data::{
    DataError, Dataset, Exif, FileFormat, Image, ImageSamples, Loader, LoaderOptions, Purpose, Resampling, SampleKey,
    Sampler, SamplerOptions, Samples, Scratch, Split, object_sheet, tfrecord,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::shared::shared;

const SIZE: [u32; 2] = [64, 64];

fn options(framing: Framing) -> CocoOptions {
    CocoOptions { framing, numbering: CategoryIds::Dense.into(), masks: false, exif: Exif::Ignore, threads: 2 }
}

/// A folder of drawn scenes in COCO's layout, whose annotations can be changed.
struct World {
    folder: TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let drawn = CocoFolder { seed: 4, train: 6, val: 2, width: 64, height: 64, format: FileFormat::Png };
        drawn.write(&folder.path().join("coco")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn annotations(&self) -> PathBuf {
        self.path("coco/annotations/instances_train2017.json")
    }

    fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut value = serde_json::from_str(&fs::read_to_string(self.annotations()).unwrap()).unwrap();
        change(&mut value);
        fs::write(self.annotations(), value.to_string()).unwrap();
    }

    fn source(&self) -> CocoSource {
        CocoSource::find(&self.path("coco"), Split::Train).unwrap()
    }

    fn open(&self) -> Result<CocoSet, DataError> {
        CocoSet::open(&self.source(), &options(Framing::fit(SIZE)))
    }

    fn records(&self, shards: usize, masks: bool) -> CocoRecords {
        let (annotations, images) = (self.annotations(), self.path("coco/train2017"));
        CocoRecords { annotations, images, out: self.path("records"), split: Split::Train, shards, masks, threads: 2 }
    }

    fn write(&self, shards: usize, masks: bool) -> CocoSource {
        self.records(shards, masks).write(&|_, _| (), &|| false).unwrap();
        CocoSource::find(&self.path("records"), Split::Train).unwrap()
    }
}

fn load(set: &CocoSet, index: usize) -> Result<(Objects, Vec<u8>), DataError> {
    let [height, width] = set.image_size(index);
    let mut out = vec![9; height * width * 3];
    let mut rng = Purpose::Augment.stream(1, 0, index as u64);
    Ok((set.load(index, &mut rng, &mut Scratch::default(), &mut out)?, out))
}

#[track_caller]
fn says<T>(result: Result<T, DataError>, parts: &[&str]) {
    let message = result.map(|_| ()).unwrap_err().to_string();
    for part in parts {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
}

#[test]
fn written_scenes_are_the_generated_ones() {
    let world = World::new();
    let framing = Framing::efficientdet_train([48, 48], Resampling::Legacy);
    let set = CocoSet::open(&world.source(), &CocoOptions { masks: true, ..options(framing.clone()) }).unwrap();
    let scenes = Scenes::new(4, Split::Train, 6, SIZE, framing).unwrap();
    assert_eq!(set.class_names(), scenes.class_names());
    for index in 0..6 {
        let (found, pixels) = load(&set, index).unwrap();
        let mut drawn = vec![0; pixels.len()];
        let mut rng = Purpose::Augment.stream(1, 0, index as u64);
        let expected = scenes.load(index, &mut rng, &mut Scratch::default(), &mut drawn).unwrap();
        assert_eq!(pixels, drawn);
        assert_eq!((found.image_id, found.objects.len()), (expected.image_id, expected.objects.len()));
        for (a, b) in found.objects.iter().zip(&expected.objects) {
            assert_eq!(a.class, b.class);
            for (a, b) in a.bbox.iter().zip(b.bbox) {
                assert!((a - b).abs() < 0.02, "{a}, {b}: coordinates are written in hundredths");
            }
            let (a, b) = (a.mask.as_ref().unwrap(), b.mask.as_ref().unwrap());
            let differs = (0..48 * 48).filter(|i| a.contains(i % 48, i / 48) != b.contains(i % 48, i / 48)).count();
            assert!(differs * 5 <= b.area().max(40), "{differs} of {} pixels", b.area());
        }
    }
}

#[test]
fn crowds_and_empty_boxes_are_left_out_and_images_without_objects_stay() {
    let world = World::new();
    let mut kept = 0;
    world.change(|data| {
        let annotations = data["annotations"].as_array_mut().unwrap();
        annotations.retain(|annotation| annotation["image_id"] != 3);
        kept = annotations.len();
        let new = |id: u32, bbox: [f64; 4], crowd: u32| {
            json!({"id": id, "image_id": 2, "category_id": 1, "area": 1.0, "bbox": bbox, "iscrowd": crowd})
        };
        annotations.extend([
            new(900, [1.0, 1.0, 9.0, 9.0], 1),
            new(901, [5.0, 5.0, 0.0, 9.0], 0),
            new(902, [70.0, 5.0, 9.0, 9.0], 0),
            new(903, [-20.0, 5.0, 9.0, 9.0], 0),
            new(904, [60.0, 50.0, 9.0, -3.0], 0),
            new(905, [-5.0, 60.0, 100.0, 9.0], 0),
        ]);
    });
    let set = world.open().unwrap();
    let summary = set.summary();
    assert_eq!((summary.images, summary.images_without_objects, summary.crowds), (6, 1, 1));
    assert_eq!((summary.objects, summary.clipped, summary.without_area), (kept + 1, 1, 4));
    assert_eq!(summary.first_without_area.len(), 4);
    assert!(summary.first_without_area[1].starts_with("image 2, annotation 902: box 70.00, 5.00 to 79.00, 14.00"));
    assert_eq!(summary.objects_of_class.iter().sum::<usize>(), kept + 1);
    let (objects, _) = load(&set, 1).unwrap();
    assert_eq!(objects.objects.last().unwrap().bbox, [0.0, 60.0, 64.0, 64.0], "cut off at the borders");
    assert!(load(&set, 2).unwrap().0.objects.is_empty());
    assert_eq!((set.image_id(2), set.objects_of(2), set.images_with_more_than(0)), (3, 0, 5));
}

#[test]
fn shards_are_the_same_data_set() {
    let world = World::new();
    world.change(|data| {
        data["annotations"][0]["bbox"] = json!([-4.0, 10.0, 30.0, 80.0]);
        data["annotations"][1]["iscrowd"] = json!(1);
    });
    let framing = Framing::efficientdet_train([48, 48], Resampling::HalfPixel);
    let with_masks = CocoOptions { masks: true, ..options(framing) };
    let files = CocoSet::open(&world.source(), &with_masks).unwrap();
    let source = world.write(4, true);
    let CocoSource::Records { shards, annotations } = &source else { panic!("shards are found first") };
    assert_eq!(shards.len(), 4);
    assert!(shards[3].ends_with("train-00003-of-00004.tfrecord"));
    assert!(annotations.as_ref().unwrap().ends_with("annotations/instances_train.json"));
    let records = CocoSet::open(&source, &with_masks).unwrap();
    assert_eq!(records.class_names(), files.class_names());
    assert_eq!(records.len(), files.len());
    assert_eq!(records.summary().crowds, 1);
    for index in 0..files.len() {
        let ((a, a_pixels), (b, b_pixels)) = (load(&files, index).unwrap(), load(&records, index).unwrap());
        assert_eq!((a.image_id, a_pixels, a.objects.len()), (b.image_id, b_pixels, b.objects.len()));
        for (a, b) in a.objects.iter().zip(&b.objects) {
            assert_eq!((a.class, &a.mask), (b.class, &b.mask));
            assert!(a.bbox.iter().zip(b.bbox).all(|(a, b)| (a - b).abs() < 1e-4), "{:?}, {:?}", a.bbox, b.bbox);
        }
    }
    assert_ne!(files.identity(), records.identity());
    let record = tfrecord::RecordFile::open(&shards[1]).unwrap();
    assert_eq!(record.len(), 2, "image i is in shard i modulo the number of shards");
    assert!(records.source(1).contains("train-00001-of-00004.tfrecord: record 1 at byte 0"), "{}", records.source(1));

    let masks_for_boxes = world.path("boxes");
    CocoRecords { out: masks_for_boxes.clone(), ..world.records(1, false) }.write(&|_, _| (), &|| false).unwrap();
    let source = CocoSource::find(&masks_for_boxes, Split::Train).unwrap();
    assert!(CocoSet::open(&source, &options(Framing::fit(SIZE))).is_ok());
    says(CocoSet::open(&source, &with_masks), &["record 1 at byte 0: the record has no masks", "--masks"]);
}

#[test]
fn annotations_that_do_not_fit_are_refused() {
    let refused = |change: &dyn Fn(&mut Value), parts: &[&str]| {
        let world = World::new();
        world.change(|data| change(data));
        says(world.open(), parts);
        let result = world.records(2, true).write(&|_, _| (), &|| false);
        if parts[0] != "no object" {
            assert!(result.is_err(), "{parts:?}");
            assert!(!world.path("records").exists(), "nothing is left behind");
        }
    };
    refused(&|data| data["images"][2]["file_name"] = json!("gone.png"), &["gone.png: no such file; 1 of 6 images"]);
    refused(
        &|data| data["images"][2]["file_name"] = json!("../x.png"),
        &["the image with id 3 has file_name `../x.png`"],
    );
    refused(&|data| data["images"][2]["file_name"] = Value::Null, &["the image with id 3 has no file_name"]);
    refused(&|data| data["annotations"][3]["category_id"] = json!(99), &["annotations[3].category_id is 99"]);
    refused(&|data| data["images"][2]["id"] = json!(1), &["images[2].id is 1, as images[0].id is"]);
    refused(&|data| data["annotations"][2]["id"] = json!(1), &["annotations[2].id is 1"]);
    refused(&|data| data["annotations"] = json!([]), &["no object", "0 crowds"]);
    refused(
        &|data| data["annotations"].as_array_mut().unwrap().iter_mut().for_each(|a| a["bbox"] = json!([0, 0, 0, 5])),
        &["no object", "boxes without area"],
    );
    refused(&|data| data["images"] = json!([]), &["annotations[0].image_id"]);
    let world = World::new();
    fs::write(world.annotations(), "{\"images\": [}").unwrap();
    says(world.open(), &["instances_train2017.json: not JSON", "line 1 column 13"]);
    let world = World::new();
    world.change(|data| data["images"][0]["id"] = json!(1_u64 << 40));
    world.change(|data| data["annotations"].as_array_mut().unwrap().retain(|a| a["image_id"] != 1));
    says(world.open(), &["an image has id 1099511627776", "0 to 2147483647"]);
}

#[test]
fn masks_that_do_not_fit_are_named() {
    for (segmentation, expected) in [
        (json!([[1, 1, 5, 5]]), "annotations[0].segmentation[0]: "),
        (json!({"size": [5, 5], "counts": [25]}), "annotations[0].segmentation.size is [5, 5]"),
        (json!({"size": [64, 64], "counts": [25]}), "annotations[0].segmentation: "),
        (Value::Null, "annotations[0].segmentation is missing"),
    ] {
        let world = World::new();
        world.change(|data| data["annotations"][0]["segmentation"] = segmentation.clone());
        assert!(load(&world.open().unwrap(), 0).is_ok(), "boxes do not need masks");
        let with_masks = CocoOptions { masks: true, ..options(Framing::fit(SIZE)) };
        says(load(&CocoSet::open(&world.source(), &with_masks).unwrap(), 0), &[expected]);
        says(world.records(2, true).write(&|_, _| (), &|| false), &[expected]);
        assert!(!world.path("records").exists());
        let report = verify(&world.source(), 100, Exif::Ignore, 2, &|_, _| ()).unwrap();
        let is_missing = segmentation.is_null();
        assert_eq!(report.damaged.len(), usize::from(!is_missing), "{:?}", report.damaged);
    }
}

#[test]
fn images_of_another_size_are_refused() {
    let world = World::new();
    let file = world.path("coco/train2017/000000000002.png");
    Image::filled(64, 32, [1, 2, 3]).write(&file, FileFormat::Png).unwrap();
    says(
        load(&world.open().unwrap(), 1),
        &["000000000002.png: the image 2 is 64x32, and its annotations are for 64x64"],
    );
    says(world.records(2, false).write(&|_, _| (), &|| false), &["is 64x32"]);
    // A JPEG of 32x64 that says it is to be turned.
    let jpeg = world.path("turned.jpg");
    Image::filled(64, 32, [1, 2, 3]).write(&jpeg, FileFormat::Jpeg(90)).unwrap();
    let tiff = b"II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    let bytes = fs::read(&jpeg).unwrap();
    let exif = [&[0xff, 0xe1][..], &(tiff.len() as u16 + 8).to_be_bytes(), b"Exif\0\0", tiff].concat();
    fs::write(&file, [&bytes[..2], &exif, &bytes[2..]].concat()).unwrap();
    world.change(|data| {
        data["images"][1]["width"] = json!(32);
        data["annotations"].as_array_mut().unwrap().retain(|annotation| annotation["image_id"] != 2);
    });
    says(
        load(&world.open().unwrap(), 1),
        &["is 64x32, and its annotations are for 32x64", "EXIF orientation 6, which is ignored"],
    );
    let upright = CocoOptions { exif: Exif::Apply, ..options(Framing::fit(SIZE)) };
    let set = CocoSet::open(&world.source(), &upright).unwrap();
    assert_eq!(load(&set, 1).unwrap().0.objects.len(), 0);
    assert_ne!(set.identity(), world.open().unwrap().identity());
    let report = verify(&world.source(), 100, Exif::Apply, 1, &|_, _| ()).unwrap();
    assert_eq!((report.damaged.len(), report.readable), (0, 6));
    let report = verify(&world.source(), 100, Exif::Ignore, 1, &|_, _| ()).unwrap();
    assert_eq!((report.damaged.len(), report.readable), (1, 5));
}

#[test]
fn images_of_any_size_with_any_number_of_objects_are_samples() {
    let world = World::new();
    let picture = |id: usize, width: usize, height: usize| {
        let file = world.path(&format!("coco/train2017/{id:012}.png"));
        Image::filled(width, height, [7, 8, 9]).write(&file, FileFormat::Png).unwrap();
    };
    picture(1, 1, 1);
    picture(2, 10_000, 50);
    world.change(|data| {
        for (image, [width, height]) in [(0, [1, 1]), (1, [10_000, 50])] {
            data["images"][image]["width"] = json!(width);
            data["images"][image]["height"] = json!(height);
        }
        let object = |id: usize, image: usize, [x, y, w, h]: [f64; 4], [left, top, across, down]: [f64; 4]| {
            let (right, bottom) = (left + across, top + down);
            json!({
                "id": id, "image_id": image, "category_id": 1, "area": w * h, "bbox": [x, y, w, h], "iscrowd": 0,
                "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
            })
        };
        let (pixel, strip) = ([0.0, 0.0, 1.0, 1.0], [9000.0, 10.0, 900.0, 30.0]);
        let mut objects = vec![object(1, 1, pixel, pixel), object(2, 2, strip, strip)];
        objects.extend((1..=500).map(|number| {
            let bbox = [1.0, 1.0, 10.0 + number as f64 / 10.0, 10.0];
            object(2 + number, 3, bbox, bbox)
        }));
        objects.push(object(600, 4, [1.0, 1.0, 9.0, 9.0], [40.0, 40.0, 20.0, 20.0]));
        data["annotations"] = json!(objects);
    });
    let layout = ObjectLayout { max_objects: 100, first_class: 1, crop: Some(8) };
    let loaded = |framing: Framing, epoch: u32, index: usize| {
        let options = CocoOptions { masks: true, ..options(framing) };
        let set = Arc::new(CocoSet::open(&world.source(), &options).unwrap());
        assert_eq!(set.images_with_more_than(100), 1);
        let samples = ImageSamples::new(set, layout).unwrap();
        let mut sample = samples.empty_sample();
        samples.load_sample(index, SampleKey { seed: 1, epoch, index }, &mut sample).unwrap();
        samples.batch_of(&[sample])
    };
    let near = |found: &[f32], expected: [f32; 4]| found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4);
    let one = loaded(Framing::fit(SIZE), 0, 0);
    assert_eq!((one.f32("sizes"), one.f32("scales")), (&[64.0, 64.0][..], &[1.0 / 64.0][..]));
    assert!(one.i32("count") == [1] && near(&one.f32("boxes")[..4], [0.0, 0.0, 64.0, 64.0]));
    let strip = loaded(Framing::fit(SIZE), 0, 1);
    assert_eq!(strip.f32("sizes"), [1.0, 64.0], "a line of pixels");
    assert!(strip.i32("count") == [1] && near(&strip.f32("boxes")[..4], [57.6, 0.2, 63.36, 0.8]));
    let many = loaded(Framing::fit(SIZE), 0, 2);
    assert_eq!((many.i32("count"), many.i32("dropped")), (&[100][..], &[400][..]));
    assert!(near(&many.f32("boxes")[..4], [1.0, 1.0, 51.1, 11.0]), "the largest, in their order");
    let outside = loaded(Framing::fit(SIZE), 0, 3);
    assert!(outside.i32("count") == [1] && outside.u8("crops").iter().all(|&value| value == 0), "an empty mask");
    for (epoch, index) in (0..8).flat_map(|epoch| (0..4).map(move |index| (epoch, index))) {
        let batch = loaded(Framing::efficientdet_train(SIZE, Resampling::HalfPixel), epoch, index);
        for [x1, y1, x2, y2] in &batch.f32("boxes").as_chunks::<4>().0[..batch.i32("count")[0] as usize] {
            assert!(0.0 <= *x1 && x1 < x2 && *x2 <= 63.0 && 0.0 <= *y1 && y1 < y2 && *y2 <= 63.0);
        }
    }
}

#[test]
fn damaged_records_are_placed() {
    let world = World::new();
    let CocoSource::Records { shards, .. } = world.write(2, true) else { panic!("shards") };
    let good = fs::read(&shards[1]).unwrap();
    let open = || {
        let source = CocoSource::find(&world.path("records"), Split::Train)?;
        CocoSet::open(&source, &options(Framing::fit(SIZE)))
    };
    assert!(open().is_ok());
    fs::write(&shards[1], &good[..good.len() - 7]).unwrap();
    says(open(), &["train-00001-of-00002.tfrecord: record 3 at byte ", "the file ends at byte"]);
    let mut bad = good.clone();
    bad[200] ^= 4;
    fs::write(&shards[1], &bad).unwrap();
    says(open(), &["train-00001-of-00002.tfrecord: record 1 at byte 0: the payload does not fit its checksum"]);
    fs::write(&shards[1], [good.clone(), good.clone()].concat()).unwrap();
    says(open(), &["a second record of the image with id 2"]);
    fs::write(&shards[1], tfrecord::frame(b"no message")).unwrap();
    says(open(), &["record 1 at byte 0: not a tf.train.Example"]);
    // A record with a caption and nothing else: Example{Features{"image/caption": bytes_list{"a"}}}
    let caption = b"\x0a\x18\x0a\x16\x0a\x0dimage/caption\x12\x05\x0a\x03\x0a\x01a";
    fs::write(&shards[1], tfrecord::frame(caption)).unwrap();
    says(open(), &["record 1 at byte 0: the record has captions but no boxes", "instances_*.json"]);
    fs::remove_file(&shards[1]).unwrap();
    says(open(), &["train-00001-of-00002.tfrecord: no such file; expected all 2 shards of `train`"]);
}

#[test]
fn shards_without_annotations_have_the_categories_that_occur() {
    let world = World::new();
    world.write(3, false);
    fs::remove_dir_all(world.path("records/annotations")).unwrap();
    let source = CocoSource::find(&world.path("records"), Split::Train).unwrap();
    says(CocoSet::open(&source, &options(Framing::fit(SIZE))), &["do not list all categories", "category ids raw"]);
    let raw = CocoOptions { numbering: CategoryIds::Raw.into(), ..options(Framing::fit(SIZE)) };
    let set = CocoSet::open(&source, &raw).unwrap();
    let names: BTreeMap<u32, &str> = (0..)
        .zip(set.class_names())
        .map(|(class, name)| (class, name.as_str()))
        .filter(|(_, n)| !n.starts_with("unused"))
        .collect();
    let all = CocoSet::open(&world.source(), &raw).unwrap();
    assert!(names.len() > 3 && names.iter().all(|(&class, name)| all.class_names()[class as usize] == *name));
    assert!(verify(&source, 100, Exif::Ignore, 1, &|_, _| ()).unwrap().is_clean());
}

#[test]
fn a_preparation_that_fails_leaves_nothing() {
    let world = World::new();
    let write = |records: CocoRecords| records.write(&|_, _| (), &|| false);
    let stopped = world.records(2, false).write(&|_, _| (), &|| true);
    assert!(matches!(stopped, Err(DataError::Stopped { .. })));
    assert!(!world.path("records").exists());
    says(write(world.records(0, false)), &["shards is 0, expected 1 to 6"]);
    says(write(world.records(7, false)), &["shards is 7"]);
    fs::create_dir_all(world.path("records/.train.partial")).unwrap();
    fs::write(world.path("records/.train.partial/old"), "killed before").unwrap();
    fs::write(world.path("records/mine.txt"), "kept").unwrap();
    let bad = world.path("coco/train2017/000000000005.png");
    let good = fs::read(&bad).unwrap();
    fs::write(&bad, "no picture").unwrap();
    says(write(world.records(2, false)), &["000000000005.png: not an image"]);
    let entries = |folder: &Path| fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(entries(&world.path("records")), ["mine.txt"]);
    fs::write(&bad, good).unwrap();
    let written = write(world.records(2, false)).unwrap();
    assert_eq!((written.images, written.without_area), (6, 0));
    assert_eq!(entries(&world.path("records")).len(), 4, "two shards, annotations, and what was there");
    says(write(world.records(2, false)), &["train-00000-of-00002.tfrecord: is there already"]);
    let val = CocoRecords { split: Split::Val, ..world.records(3, false) };
    write(val).unwrap();
    assert_eq!(entries(&world.path("records")).len(), 7, "shards of both splits");
}

#[test]
fn folders_that_are_none_are_refused() {
    let world = World::new();
    let find = |name: &str| CocoSource::find(&world.path(name), Split::Val);
    says(find("nowhere"), &["nowhere: no such folder", "annotations/instances_SPLIT2017.json"]);
    says(find("coco/train2017"), &["neither annotations nor shards of val in it"]);
    fs::write(world.path("coco/annotations/instances_val2014.json"), "{}").unwrap();
    says(find("coco"), &["several files of annotations", "instances_val2014.json"]);
    fs::remove_file(world.path("coco/annotations/instances_val2014.json")).unwrap();
    fs::remove_dir_all(world.path("coco/val2017")).unwrap();
    says(find("coco"), &["val2017: no such folder"]);
}

#[test]
fn identities_follow_the_content() {
    let world = World::new();
    let identity = || world.open().unwrap().identity();
    let first = identity();
    assert_eq!(first, identity());
    assert!(first.starts_with("coco:sha256:") && first.ends_with(":dense"), "{first}");
    world.change(|data| data["annotations"][0]["bbox"][0] = json!(1.25));
    let moved = identity();
    assert_ne!(first, moved);
    world.change(|data| data["annotations"][0]["iscrowd"] = json!(1));
    assert_ne!(moved, identity());
}

#[test]
fn real_photos_are_loaded_the_same_whatever_the_workers() {
    let Some(root) = shared("coco") else { return };
    let source = CocoSource::find(&root, Split::Train).unwrap();
    let framing = Framing::efficientdet_train([128, 128], Resampling::Legacy);
    let raw = CocoOptions { numbering: CategoryIds::Raw.into(), masks: true, ..options(framing) };
    let set = Arc::new(CocoSet::open(&source, &raw).unwrap());
    assert_eq!((set.len(), set.num_classes(), set.classes().categories()), (128, 91, 80));
    let summary = set.summary();
    assert_eq!((summary.objects, summary.crowds, summary.images_without_objects), (929, 10, 2));
    assert_eq!((set.class_names()[0].as_str(), set.class_names()[89].as_str()), ("person", "toothbrush"));
    let layout = ObjectLayout { max_objects: 10, first_class: 0, crop: Some(28) };
    let samples = Arc::new(ImageSamples::new(Arc::clone(&set), layout).unwrap());
    let batches = |workers: usize| {
        let sampler = Sampler::new(set.len(), SamplerOptions::train(16, 3)).unwrap();
        let mut loader = Loader::new(Arc::clone(&samples), sampler, LoaderOptions::new(workers, 3, 1)).unwrap();
        std::iter::from_fn(|| loader.next_batch()).map(Result::unwrap).collect::<Vec<_>>()
    };
    let first = batches(1);
    assert_eq!(first, batches(3));
    let mut dropped = 0;
    for batch in &first {
        let feeds = &batch.feeds;
        dropped += feeds.i32("dropped").iter().sum::<i32>();
        for row in 0..16 {
            let count = feeds.i32("count")[row] as usize;
            let index = (0..set.len()).find(|&index| set.image_id(index) == feeds.i32("ids")[row]).unwrap();
            assert!(set.objects_of(index) >= count);
            let boxes = feeds.f32("boxes")[row * 40..][..40].as_chunks::<4>().0;
            assert!(boxes[..count].iter().all(|b| b[0] < b[2] && b[1] < b[3] && b[2] <= 127.0 && b[3] <= 127.0));
        }
    }
    assert!(dropped > 50, "{dropped} objects beyond the capacity");
}

#[test]
fn real_photos_come_back_from_shards() {
    let Some(root) = shared("coco") else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = CocoSource::find(&root, Split::Val).unwrap();
    let CocoSource::Files { annotations, images } = source.clone() else { panic!("files") };
    let out = folder.path().to_owned();
    let records = CocoRecords { annotations, images, out, split: Split::Val, shards: 3, masks: true, threads: 2 };
    let written = records.write(&|_, _| (), &|| false).unwrap();
    assert_eq!((written.images, written.objects, written.crowds), (70, 514, 5));
    let framing = Framing::efficientdet_eval([160, 160], Resampling::Antialias);
    let with_masks = CocoOptions { masks: true, ..options(framing) };
    let files = CocoSet::open(&source, &with_masks).unwrap();
    let shards = CocoSet::open(&CocoSource::find(folder.path(), Split::Val).unwrap(), &with_masks).unwrap();
    for index in (0..70).step_by(7) {
        let ((a, a_pixels), (b, b_pixels)) = (load(&files, index).unwrap(), load(&shards, index).unwrap());
        assert!(a_pixels == b_pixels && a.image_id == b.image_id && a.objects.len() == b.objects.len());
        let masks = |objects: &Objects| objects.objects.iter().map(|o| o.mask.clone()).collect::<Vec<_>>();
        assert_eq!(masks(&a), masks(&b));
    }
    let beside = folder.path().join("annotations/instances_val.json");
    let whole = files.annotations(2).unwrap().unwrap();
    let of_file = shards.annotations(2).unwrap().unwrap();
    assert!(of_file.path() == beside && of_file.annotations() == whole.annotations());
    let objects = |instances: &Instances| {
        // Records have sides and areas in single precision.
        let rounded = |value: f64| (value * 100.0).round();
        let mut all: Vec<_> = (instances.annotations().iter().enumerate())
            .map(|(index, object)| {
                let place = (instances.images()[object.image].id, instances.categories()[object.category].id);
                let sizes = (object.bbox.map(rounded), (object.area / 10.0).round());
                (place, object.is_crowd, format!("{sizes:?}"), format!("{:?}", instances.mask(index).unwrap()))
            })
            .collect();
        all.sort();
        all
    };

    // Beside annotations of more images, those of the images that there are.
    let mut more: Value = serde_json::from_slice(&fs::read(whole.path()).unwrap()).unwrap();
    let mut other = more["images"][0].clone();
    other["id"] = json!(1);
    more["images"].as_array_mut().unwrap().push(other);
    let mut object = more["annotations"][0].clone();
    (object["id"], object["image_id"]) = (json!(1), json!(1));
    more["annotations"].as_array_mut().unwrap().push(object);
    fs::write(&beside, more.to_string()).unwrap();
    let shards = CocoSet::open(&CocoSource::find(folder.path(), Split::Val).unwrap(), &with_masks).unwrap();
    let of_file = shards.annotations(2).unwrap().unwrap();
    assert_eq!((of_file.path(), of_file.images().len()), (beside.as_path(), 70));
    assert!(of_file.annotations() == whole.annotations());
    let report =
        verify(&CocoSource::find(folder.path(), Split::Val).unwrap(), 20, Exif::Ignore, 2, &|_, _| ()).unwrap();
    assert!(report.is_clean());
    assert_eq!((report.readable, report.summary.crowds, report.categories), (70, 5, 80));

    // Beside annotations of other images, as those of records without ids are, the objects of the records.
    for (list, id) in [("images", "id"), ("annotations", "image_id")] {
        let ids = more[list].as_array_mut().unwrap().iter_mut().map(|entry| &mut entry[id]);
        ids.for_each(|id| *id = (id.as_i64().unwrap() + 10_000_000).into());
    }
    fs::write(&beside, more.to_string()).unwrap();
    let shards = CocoSet::open(&CocoSource::find(folder.path(), Split::Val).unwrap(), &with_masks).unwrap();
    assert!(objects(&shards.annotations(2).unwrap().unwrap()) == objects(&whole));

    // Without them, the same.
    fs::remove_file(&beside).unwrap();
    let raw = CocoOptions { numbering: CategoryIds::Raw.into(), ..with_masks };
    let shards = CocoSet::open(&CocoSource::find(folder.path(), Split::Val).unwrap(), &raw).unwrap();
    let of_records = shards.annotations(2).unwrap().unwrap();
    assert_eq!((of_records.images().len(), of_records.annotations().len()), (70, 514));
    assert!(objects(&of_records) == objects(&whole));
}

#[test]
fn sheets_show_boxes_and_names() {
    let world = World::new();
    let framing = Framing::efficientdet_eval([64, 64], Resampling::Legacy);
    let masks = CocoOptions { masks: true, ..options(framing) };
    let set = CocoSet::open(&world.source(), &masks).unwrap();
    let sheet = object_sheet(&set, 4, 0, 0, 100).unwrap();
    assert_eq!((sheet.width, sheet.height), (2 * 68 + 4, 2 * (64 + 7 + 8) + 4));
    assert!(object_sheet(&set, 7, 0, 0, 100).is_err());
}
