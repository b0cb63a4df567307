//! ImageNet-like folders.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bessemer_data::{
    ClassFolder, ColourMode, Dataset, FileFormat, Image, ImageFormat, ImageSamples, Loader, LoaderOptions, OnBadSample,
    RandomResizedCrop, ResizeCentreCrop, Sampler, SamplerOptions, Split, Transform, verify,
};
use tempfile::TempDir;

const EVAL: Transform = Transform::Eval(ResizeCentreCrop::antialiased(10, 8));

fn write(root: &Path, name: &str, shade: u8) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let format = if name.to_ascii_lowercase().ends_with("png") { FileFormat::Png } else { FileFormat::Jpeg(95) };
    let mut picture = Image::filled(20, 16, [shade, 255 - shade, shade / 2]);
    picture.pixels[..60].fill(255);
    picture.write(&path, format).unwrap();
}

/// Two classes; three pictures to train on and two to evaluate on.
fn small() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let names = ["train/b/2.jpg", "train/b/10.JPEG", "train/a/x.Png", "val/b/v.jpeg", "val/a/v.png"];
    for (number, name) in names.iter().enumerate() {
        write(root.path(), name, number as u8 * 50);
    }
    root
}

fn open(root: &Path, split: Split) -> Result<ClassFolder, String> {
    ClassFolder::open(root, split, EVAL).map_err(|error| error.to_string())
}

#[test]
fn lists_in_order() {
    let root = small();
    fs::write(root.path().join("train/a/notes.txt"), "not an image").unwrap();
    fs::write(root.path().join("train/a/.hidden.jpg"), "not an image").unwrap();
    fs::write(root.path().join("train/README"), "not a class").unwrap();
    let train = open(root.path(), Split::Train).unwrap();
    assert_eq!(train.class_names(), ["a", "b"]);
    let files: Vec<_> = (0..3).map(|i| (train.label(i), train.path(i))).collect();
    let expected = [(0, "train/a/x.Png"), (1, "train/b/10.JPEG"), (1, "train/b/2.jpg")];
    assert_eq!(files, expected.map(|(label, name)| (label, root.path().join(name))));
    assert_eq!(open(root.path(), Split::Val).unwrap().len(), 2);
}

#[test]
fn val_takes_its_labels_from_train() {
    let root = small();
    fs::remove_dir_all(root.path().join("val/a")).unwrap();
    let val = open(root.path(), Split::Val).unwrap();
    assert_eq!((val.len(), val.label(0), val.num_classes()), (1, 1, 2));
}

#[test]
fn identity_follows_names_and_sizes() {
    let root = small();
    let identity = |split| open(root.path(), split).unwrap().identity();
    let before = identity(Split::Train);
    assert_eq!(before, identity(Split::Train));
    assert_ne!(before, identity(Split::Val));
    write(root.path(), "train/a/y.png", 9);
    let with_more = identity(Split::Train);
    assert_ne!(before, with_more);
    fs::write(root.path().join("train/a/y.png"), [0; 9]).unwrap();
    assert_ne!(with_more, identity(Split::Train));
}

#[test]
fn says_what_is_missing() {
    let root = small();
    let path = root.path();
    let error = |split| open(path, split).unwrap_err();
    let layout = "train/CLASS/*.jpg and val/CLASS/*.jpg (or .jpeg, .png, .webp, .bmp)";
    let nowhere = path.join("nowhere");
    let expected = format!("{}: no such folder; expected a data set laid out as {layout}", nowhere.display());
    assert_eq!(open(&nowhere, Split::Train).unwrap_err(), expected);

    fs::create_dir(path.join("val/c")).unwrap();
    assert!(error(Split::Val).contains("val/c: train/ has no such class; expected one of the 2 classes of train/"));
    fs::create_dir(path.join("train/c")).unwrap();
    assert!(error(Split::Train).contains("train/c: no images in it; expected at least one"));
    assert!(error(Split::Val).contains("val/c: no images in it; expected at least one"));
    fs::remove_dir_all(path.join("val")).unwrap();
    assert!(error(Split::Train).contains("val: no such folder; expected"));
    fs::write(path.join("val"), "").unwrap();
    assert!(error(Split::Train).contains("val: is not a folder; expected"));
    fs::remove_dir_all(path.join("train")).unwrap();
    fs::create_dir(path.join("train")).unwrap();
    fs::remove_file(path.join("val")).unwrap();
    fs::create_dir(path.join("val")).unwrap();
    assert!(error(Split::Train).contains("train: no class folder in it; expected"));
}

#[test]
fn loads_the_same_with_any_number_of_workers() {
    let root = small();
    let batches = |workers| {
        let transform = Transform::Train(RandomResizedCrop::imagenet(8));
        let dataset = ClassFolder::open(root.path(), Split::Train, transform).unwrap();
        let sampler = Sampler::new(dataset.len(), SamplerOptions::train(2, 3)).unwrap();
        let mut loader = Loader::new(
            Arc::new(ImageSamples::new(Arc::new(dataset), ()).unwrap()),
            sampler,
            LoaderOptions::new(workers, 4, 8),
        )
        .unwrap();
        let mut batches = Vec::new();
        for _ in 0..8 {
            while let Some(batch) = loader.next_batch() {
                batches.push(batch.unwrap());
            }
        }
        assert_eq!(batches.len(), 8);
        batches
    };
    assert_eq!(batches(1), batches(4));
}

#[test]
fn damaged_files_stop_or_are_skipped() {
    let root = small();
    let damaged = root.path().join("val/a/v.png");
    fs::write(&damaged, b"\x89PNG\r\n\x1a\n").unwrap();
    let run = |on_bad_sample| {
        let dataset = open(root.path(), Split::Val).unwrap();
        let sampler = Sampler::new(2, SamplerOptions::eval(2)).unwrap();
        let options = LoaderOptions { on_bad_sample, ..LoaderOptions::new(2, 0, 1) };
        Loader::new(Arc::new(ImageSamples::new(Arc::new(dataset), ()).unwrap()), sampler, options).unwrap()
    };
    let error = run(OnBadSample::Stop).next_batch().unwrap().unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: truncated PNG: the file ends at byte 8", damaged.display())), "{error}");
    let mut loader = run(OnBadSample::Skip);
    assert_eq!(loader.next_batch().unwrap().unwrap().feeds.i32("labels"), [1, 1]);
    let skipped: Vec<_> = loader.skipped().collect();
    assert_eq!((skipped.len(), skipped[0].index, skipped[0].replaced_by), (1, 0, 1));
    assert!(skipped[0].reason.contains("v.png: truncated PNG"));
}

#[test]
fn verify_counts_and_names_damaged_files() {
    let root = small();
    let damaged = root.path().join("train/b/2.jpg");
    let whole = fs::read(&damaged).unwrap();
    fs::write(&damaged, &whole[..whole.len() / 2]).unwrap();
    fs::copy(root.path().join("val/a/v.png"), root.path().join("train/a/really_png.jpg")).unwrap();
    let largest = AtomicUsize::new(0);
    let progress = |done: usize, total: usize| {
        assert_eq!(total, 6);
        largest.fetch_max(done, Ordering::Relaxed);
    };
    let report = verify(root.path(), 3, &progress).unwrap();
    assert_eq!(largest.into_inner(), 6);
    assert!(!report.is_clean());
    let train = &report.train;
    assert_eq!(train.classes, [("a".into(), 2), ("b".into(), 2)]);
    assert_eq!((train.readable, train.misnamed), (3, 1));
    assert_eq!(
        train.formats.iter().map(|(&f, &n)| (f, n)).collect::<Vec<_>>(),
        [(ImageFormat::Jpeg, 1), (ImageFormat::Png, 2)]
    );
    assert_eq!(train.modes[&ColourMode::Rgb], 3);
    assert_eq!((train.smallest, train.largest), (Some((20, 16)), Some((20, 16))));
    assert_eq!(train.damaged.len(), 1);
    assert_eq!(train.damaged[0].path, damaged);
    assert!(train.damaged[0].reason.contains("2.jpg: truncated JPEG"), "{}", train.damaged[0].reason);
    assert_eq!((report.val.readable, report.val.damaged.len()), (2, 0));
}
