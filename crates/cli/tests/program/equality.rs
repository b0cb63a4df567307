//! Models trained by ranks of both MPIs, beside one rank: ranks with a micro-batch each have its bits.

use crate::common::{bessemer, ran};
use crate::launchers::launchers;
use bessemer_comm::spawn::MpiLauncher;
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Names of models, with recipes and what is set over them: runs of two short steps.
const MODELS: [(&str, &str, &[&str]); 5] = [
    (
        "bert",
        include_str!("../../../train/tests/fixtures/ranks/bert.toml"),
        &["data.source=synthetic", "train.ema_decay="],
    ),
    ("electra", include_str!("../../../train/tests/fixtures/ranks/electra.toml"), &["data.source=synthetic"]),
    ("resnet20", RESNET, &[]),
    ("mask-rcnn", include_str!("../../../train/tests/fixtures/ranks/masks.toml"), &["data.eval_samples=1"]),
    ("efficientdet", include_str!("../../../train/tests/fixtures/ranks/detector.toml"), &["data.eval_samples=1"]),
];

const RESNET: &str = r#"
name = "tiny-pictures"
model = { name = "resnet20-cifar", num_classes = 10 }
data = { source = "shapes", train_samples = 24, eval_samples = 2, image_size = 16, eval_resize = 16, eval_image_size = 16 }
train = { batch_size = 2, steps = 2, seed = 5, label_smoothing = 0.1, mixup_alpha = 0.4, clip_norm = 5.0, ema_decay = 0.9 }
optimizer = { momentum = 0.9, weight_decay = 1e-3, decay_exclude = "bn_and_bias" }
schedule = { kind = "constant", base_lr = 0.05 }
loader = { workers = 1 }
"#;

/// A model in a folder of runs.
struct Model {
    name: &'static str,
    folder: TempDir,
    arguments: String,
}

impl Model {
    fn new((name, recipe, set): (&'static str, &str, &[&str])) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("recipe.toml"), recipe).unwrap();
        let set: String = set.iter().map(|field| format!(" --set {field}")).collect();
        let arguments = format!(
            "train --recipe recipe.toml --quiet --threads 1 --set train.steps=2 --set train.batch_size=1 --set eval.batch_size=1{set}"
        );
        Self { name, folder, arguments }
    }

    fn path(&self, run: &str) -> std::path::PathBuf {
        self.folder.path().join(run)
    }

    fn alone(&self, run: &str, accumulation: usize) {
        bessemer(
            self.folder.path(),
            &format!("{} --set train.accumulation={accumulation} --out {run}", self.arguments),
        )
        .ok();
    }

    fn together(&self, run: &str, launcher: &MpiLauncher, ranks: usize, accumulation: usize) {
        let arguments = format!("{} --set train.accumulation={accumulation} --out {run}", self.arguments);
        let words: Vec<_> = arguments.split_whitespace().map(Into::into).collect();
        let mut command = launcher.command(ranks, env!("CARGO_BIN_EXE_bessemer").as_ref(), &words);
        ran(command.current_dir(self.folder.path())).ok();
    }

    /// Losses of all steps, and the tensors of the last checkpoint; without running statistics, which ranks average and one rank
    /// updates micro-batch by micro-batch, unless they are asked for.
    fn result(&self, run: &str, with_statistics: bool) -> (Vec<String>, BTreeMap<String, Vec<u8>>) {
        let events = fs::read_to_string(self.path(run).join("events.jsonl")).unwrap();
        let events = events.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let losses: Vec<String> =
            events.filter(|event| event["kind"] == "step").map(|event| event["loss"].to_string()).collect();
        assert_eq!(losses.len(), 2);
        (losses, tensors(&self.path(run), with_statistics))
    }
}

fn tensors(run: &Path, with_statistics: bool) -> BTreeMap<String, Vec<u8>> {
    let latest = fs::read_to_string(run.join("checkpoints/latest")).unwrap();
    let folder = run.join("checkpoints").join(latest.trim());
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut tensors = BTreeMap::new();
    for file in files.filter(|file| file.extension().is_some_and(|extension| extension == "safetensors")) {
        let bytes = fs::read(&file).unwrap();
        for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let is_statistic = name.contains("running_") || name.contains("num_batches");
            if with_statistics || !is_statistic {
                tensors.insert(
                    format!("{} {name}", file.display().to_string().rsplit('/').next().unwrap()),
                    tensor.data().to_vec(),
                );
            }
        }
    }
    assert!(tensors.len() > 20, "{}", tensors.len());
    tensors
}

#[track_caller]
fn assert_equal(model: &Model, a: &str, b: &str, with_statistics: bool) {
    let ((losses, tensors), (other_losses, other_tensors)) =
        (model.result(a, with_statistics), model.result(b, with_statistics));
    assert_eq!(losses, other_losses, "{}: {a} and {b}", model.name);
    assert!(tensors.keys().eq(other_tensors.keys()));
    for (name, bytes) in tensors {
        assert!(bytes == other_tensors[&name], "{}: {name} differs between {a} and {b}", model.name);
    }
}

/// BERT is compared by `ranks.rs`.
#[test]
fn two_ranks_of_each_mpi_have_the_bits_of_one() {
    let launchers = launchers();
    for model in MODELS.into_iter().filter(|(name, ..)| *name != "bert" && !launchers.is_empty()) {
        let model = Model::new(model);
        model.alone("one", 2);
        for (name, launcher) in &launchers {
            model.together(name, launcher, 2, 2);
            assert_equal(&model, "one", name, false);
        }
    }
}

/// `cargo test --profile checked -p bessemer --test program -- --ignored equality::`
#[test]
#[ignore = "takes minutes: all models with four micro-batches on two and on four ranks of each MPI"]
fn four_micro_batches_on_two_and_four_ranks_of_each_mpi() {
    let launchers = launchers();
    for model in MODELS {
        let model = Model::new(model);
        model.alone("one", 4);
        for (name, launcher) in &launchers {
            model.together(&format!("{name}-4"), launcher, 4, 4);
            assert_equal(&model, "one", &format!("{name}-4"), false);
            model.together(&format!("{name}-2"), launcher, 2, 4);
        }
        for ranks in [2, 4] {
            for pair in launchers.windows(2) {
                let [a, b] = [0, 1].map(|number: usize| format!("{}-{ranks}", pair[number].0));
                assert_equal(&model, &a, &b, true);
            }
        }
    }
}
