//! A training run of seconds: ResNet-20 on drawn shapes of 16 pixels, 5 steps an epoch, with mixup, clipping, averages
//! and an evaluation set that does not fill its last batch.

pub(crate) mod ranks;
pub(crate) mod text;

use bessemer_train::checkpoint::{Checkpoint, load_checkpoint};
use bessemer_train::{Recipe, RunFolder, TrainOptions};
use std::path::{Path, PathBuf};

pub(crate) const RECIPE: &str = r#"
name = "tiny"
model = { name = "resnet20-cifar", num_classes = 10 }
data = { source = "shapes", train_samples = 43, eval_samples = 12, image_size = 16, eval_resize = 16, eval_image_size = 16 }
train = { batch_size = 8, epochs = 3, seed = 5, label_smoothing = 0.1, mixup_alpha = 0.4, clip_norm = 5.0, ema_decay = 0.9 }
optimizer = { momentum = 0.9, weight_decay = 1e-3, decay_exclude = "bn_and_bias" }
schedule = { kind = "cosine", base_lr = 0.05, warmup_epochs = 1.0 }
eval = { every_epochs = 1 }
checkpoint = { every_steps = 4 }
loader = { workers = 1 }
"#;

pub(crate) const TOTAL_STEPS: u64 = 15;

pub(crate) fn new_run(folder: &Path, overrides: &[&str]) -> TrainOptions {
    run_of(RECIPE, "tiny", folder, overrides)
}

/// A run of a recipe's text on one thread.
pub(crate) fn run_of(text: &str, name: &str, folder: &Path, overrides: &[&str]) -> TrainOptions {
    let overrides: Vec<_> = overrides.iter().map(|text| text.parse().expect("an override")).collect();
    let recipe = Recipe::from_toml(text, name, &overrides).expect("a valid recipe");
    let mut options = TrainOptions::new(recipe, RunFolder::New(folder.to_owned()));
    options.compute.device.threads = 1;
    options
}

pub(crate) fn resumed(folder: &Path, overrides: &[&str]) -> TrainOptions {
    TrainOptions { folder: RunFolder::Resume(folder.to_owned()), ..new_run(folder, overrides) }
}

/// The folder of the checkpoint of the last step.
pub(crate) fn last_folder(run: &Path) -> PathBuf {
    let name = std::fs::read_to_string(run.join("checkpoints/latest")).expect("a checkpoint");
    run.join("checkpoints").join(name.trim())
}

/// The checkpoint of the last step.
pub(crate) fn last(run: &Path) -> Checkpoint<'static> {
    load_checkpoint(&last_folder(run)).expect("a whole checkpoint")
}

/// Whether all tensors are equal, bit for bit.
#[track_caller]
pub(crate) fn assert_same_tensors(a: &Checkpoint<'_>, b: &Checkpoint<'_>) {
    for (a, b) in [(&a.model, &b.model), (&a.optimizer, &b.optimizer)] {
        for (a, b) in a.iter().zip(b) {
            assert!(a == b, "{} differs", a.name);
        }
        assert_eq!(a.len(), b.len());
    }
    assert!(a.ema == b.ema, "the averages differ");
}

/// A JPEG file that says it is to be turned by a quarter to the right.
pub(crate) fn turned(jpeg: &[u8]) -> Vec<u8> {
    let tiff = b"II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    let exif = [&[0xff, 0xe1][..], &(tiff.len() as u16 + 8).to_be_bytes(), b"Exif\0\0", tiff].concat();
    [&jpeg[..2], &exif, &jpeg[2..]].concat()
}
