//! The work that all frameworks do: the folder with weights, batches and settings, see `peers/PROTOCOL.md`.

use super::protocol::VERSION;
use crate::measure::{MeasureError, drawn};
use crate::workload::{CLIP_NORM, ComparedWork, DetectorOutputs, Mode, StepSettings, Work, Workload};
use bessemer_data::hex;
use bessemer_ir::passes::CompileOptions;
use bessemer_ir::run::{StateStore, read_f32};
use bessemer_ir::{DType, Role, Shape};
use bessemer_models::ModelError;
use bessemer_nn::{DecayExclude, Optimizer, ParamKind, ParamSpec, initialise};
use bessemer_train::DeviceOptions;
use bessemer_train::tasks::registry;
use bessemer_weights::{Dtype, FileError, NamedTensor, TensorError, write_safetensors};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Batches that take turns.
pub(crate) const BATCHES: usize = 2;

/// Samples of the step by which norms take statistics.
const SETTLING_BATCH: usize = 2;

const DESCRIPTION_FILE: &str = "work.json";
pub(super) const WEIGHTS_FILE: &str = "weights.safetensors";
pub(super) const BATCHES_FILE: &str = "batches.safetensors";

/// Work that a folder is made of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Order {
    pub model: String,
    pub mode: Mode,
    pub batch_size: usize,
    pub settings: StepSettings,
    pub seed: u64,
}

/// `work.json`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Description {
    pub protocol: u32,
    pub model: String,
    pub mode: Mode,
    pub batch_size: usize,
    pub batches: usize,
    /// Hash of the content of the weights.
    pub weights: String,
    pub sizes: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalise: Option<Value>,
    /// From the outputs of a detector's network to detections; `None` where inference ends with the outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detection: Option<Value>,
    pub training: Map<String, Value>,
}

#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Settling(#[from] MeasureError),
    #[error("{}: {problem}", path.display())]
    Damaged { path: PathBuf, problem: String },
    #[error("{model} is not compared with other frameworks; those are {}", registry::compared())]
    NotCompared { model: String },
}

impl Order {
    fn work(&self) -> Work<'_> {
        Work {
            model: &self.model,
            mode: self.mode,
            batch_size: self.batch_size,
            precision: DType::F32,
            settings: self.settings,
        }
    }

    /// Writes the folder, unless it holds this work already. Weights are drawn once for all of a model and a seed and lie in
    /// `drawn`; folders have links to them.
    ///
    /// # Errors
    /// A model that is not compared; a folder that cannot be written.
    pub(crate) fn write(&self, folder: &Path, drawn: &Path) -> Result<(), WorkError> {
        let (weights, hash) = self.draw(drawn)?;
        let path = folder.join(DESCRIPTION_FILE);
        let description = serde_json::to_string_pretty(&self.describe(hash)?).expect("keys are names") + "\n";
        if fs::read_to_string(&path).is_ok_and(|found| found == description) {
            return Ok(());
        }
        fs::create_dir_all(folder).map_err(at(folder))?;
        // Training has the feeds of inference, too.
        let workload = Work { mode: Mode::Train, ..self.work() }.build()?;
        link(&weights, &folder.join(WEIGHTS_FILE)).map_err(at(folder))?;
        write_safetensors(&folder.join(BATCHES_FILE), &batches(&workload, self.seed)?)?;
        // Last: a folder with a description is whole.
        fs::write(&path, description).map_err(at(&path))
    }

    /// The file of the weights, which is written once, and its hash.
    fn draw(&self, folder: &Path) -> Result<(PathBuf, String), WorkError> {
        let name = format!("{}-{}", self.model, self.seed);
        let (weights, hash) = (folder.join(format!("{name}.safetensors")), folder.join(format!("{name}.hash")));
        if let Ok(known) = fs::read_to_string(&hash) {
            return Ok((weights, known));
        }
        fs::create_dir_all(folder).map_err(at(folder))?;
        let one_sample = Work { batch_size: 1, mode: Mode::Infer, ..self.work() };
        let settling =
            registry::find(&self.model)?.family().settling_step(&Work { batch_size: SETTLING_BATCH, ..one_sample })?;
        let settled = settling.map(|step| settle(&step, self.seed)).transpose()?;
        write_safetensors(&weights, &draw(&one_sample.build()?.specs, self.seed, settled.as_deref())?)?;
        let content = hash_of(&weights).map_err(at(&weights))?;
        // Last: what has a hash is whole.
        fs::write(&hash, &content).map_err(at(&hash))?;
        Ok((weights, content))
    }

    fn describe(&self, weights: String) -> Result<Description, WorkError> {
        let work = self.work();
        let known = registry::find(&self.model)?;
        let Some(compared) = known.family().compared_work(&Work { model: known.name(), ..work })? else {
            return Err(WorkError::NotCompared { model: self.model.clone() });
        };
        Ok(Description {
            protocol: VERSION,
            model: self.model.clone(),
            mode: self.mode,
            batch_size: self.batch_size,
            batches: BATCHES,
            weights,
            training: object(training(&compared)),
            sizes: object(compared.sizes),
            normalise: compared.normalise,
            detection: compared.detection,
        })
    }
}

impl Description {
    /// # Errors
    /// A file that cannot be read or is of another form.
    pub(crate) fn read(folder: &Path) -> Result<Self, WorkError> {
        let path = folder.join(DESCRIPTION_FILE);
        let text = fs::read_to_string(&path).map_err(|source| WorkError::Io { path: path.clone(), source })?;
        serde_json::from_str(&text).map_err(|error| WorkError::Damaged { path, problem: error.to_string() })
    }

    /// Settings of the step that does this work.
    pub(crate) fn settings(&self) -> StepSettings {
        let usual = StepSettings::default();
        let size =
            |name: &str, usual: usize| self.sizes.get(name).and_then(Value::as_u64).map_or(usual, |n| n as usize);
        StepSettings {
            sequence_length: size("sequence_length", usual.sequence_length),
            predictions: size("predictions", usual.predictions),
            dropout: self.training.get("dropout").and_then(Value::as_f64).unwrap_or(0.0),
            clip: self.training.get("clip_norm").is_some_and(|norm| !norm.is_null()),
            plain_spans: true,
            outputs: if self.detection.is_some() { DetectorOutputs::Detections } else { DetectorOutputs::Network },
            ..usual
        }
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> WorkError {
    let path = path.to_owned();
    move |source| WorkError::Io { path, source }
}

/// The first 16 digits of a file's SHA-256.
fn hash_of(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut file = fs::File::open(path)?;
    let mut block = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut block)?;
        if count == 0 {
            return Ok(hex(&hasher.finalize()[..8]));
        }
        hasher.update(&block[..count]);
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => unreachable!("objects are made here"),
    }
}

/// How the model is trained, by the names of the protocol.
fn training(work: &ComparedWork) -> Value {
    let (config, lr) = (&work.training, work.training.schedule.lr);
    let exclude = |exclude| match exclude {
        DecayExclude::None => "none",
        DecayExclude::BatchNorm => "batch_norm",
        DecayExclude::LayerNormAndBias => "layer_norm_and_bias",
        _ => unreachable!("other frameworks have no such rule"),
    };
    let mut training = match &config.optimizer {
        Optimizer::Sgd(sgd) => json!({
            "optimizer": "sgd", "lr": lr, "momentum": sgd.momentum, "nesterov": sgd.nesterov,
            "weight_decay": sgd.weight_decay, "decay_exclude": exclude(sgd.decay_exclude),
            "label_smoothing": work.label_smoothing, "dropout": work.dropout,
        }),
        Optimizer::Adam(adam) => json!({
            "optimizer": "adamw", "lr": lr, "betas": [adam.moments.beta1, adam.moments.beta2],
            "eps": adam.moments.eps, "bias_correction": adam.moments.bias_correction,
            "weight_decay": adam.weight_decay, "decay_exclude": exclude(adam.decay_exclude),
            "label_smoothing": work.label_smoothing, "dropout": work.dropout,
        }),
        Optimizer::Lamb(_) => unreachable!("no work is trained by LAMB"),
    };
    if let Some(loss) = &work.loss {
        training["loss"] = loss.clone();
    }
    training["clip_norm"] = if config.clip.is_some() { json!(CLIP_NORM) } else { Value::Null };
    training
}

/// Initial weights under the names and in the layouts of files; statistics of norms from `settled`, where there is such a state.
fn draw(
    specs: &[ParamSpec],
    seed: u64,
    settled: Option<&dyn StateStore>,
) -> Result<Vec<NamedTensor<'static>>, WorkError> {
    let tensor = |spec: &ParamSpec| {
        let values = match settled {
            Some(state) if spec.kind == ParamKind::Statistic => {
                read_f32(state, &spec.name).map_err(MeasureError::from)?
            }
            _ => initialise(spec, seed),
        };
        let bytes: Vec<u8> = spec.to_external(&values).into_iter().flat_map(f32::to_le_bytes).collect();
        Ok(NamedTensor::new(&spec.name, Dtype::F32, spec.external_shape().dims(), bytes)?)
    };
    specs.iter().filter(|spec| spec.kind.is_model()).map(tensor).collect()
}

/// The state after one step of its own.
fn settle(step: &Workload, seed: u64) -> Result<Arc<dyn StateStore>, WorkError> {
    let mut executor =
        drawn(step, &*DeviceOptions::default().open().map_err(MeasureError::from)?, &CompileOptions::default(), seed)?;
    executor.run().map_err(MeasureError::from)?;
    Ok(Arc::clone(executor.state()))
}

/// The feeds of all batches, `[K, ...]` each.
fn batches(workload: &Workload, seed: u64) -> Result<Vec<NamedTensor<'static>>, TensorError> {
    let feeds = workload.graph.inputs().map(|(_, input)| input).filter(|input| input.role == Role::Feed);
    feeds
        .map(|feed| {
            let bytes: Vec<u8> = (0..BATCHES as u64).flat_map(|batch| workload.content(feed, seed + batch)).collect();
            let dtype = match feed.ty.dtype {
                DType::U8 => Dtype::U8,
                DType::I32 => Dtype::I32,
                _ => Dtype::F32,
            };
            NamedTensor::new(&feed.name, dtype, all_batches(&feed.ty.shape), bytes)
        })
        .collect()
}

fn all_batches(shape: &Shape) -> Vec<usize> {
    std::iter::once(BATCHES).chain(shape.dims().iter().copied()).collect()
}

/// A hard link, or a copy where the file system has none.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_models::{ExternalTensor, load_into};
    use bessemer_weights::TensorFile;
    use tempfile::TempDir;

    fn order(model: &str, mode: Mode) -> Order {
        let settings =
            StepSettings { sequence_length: 16, predictions: 2, plain_spans: true, ..StepSettings::default() };
        Order { model: model.to_owned(), mode, batch_size: 3, settings, seed: 5 }
    }

    #[test]
    fn folders_are_whole_and_the_same_each_time() {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        let models = [("bert-tiny", 7), ("electra-mini-squad", 5), ("resnet18", 2), ("efficientdet-tiny", 5)];
        for (model, feeds) in models {
            let order = order(model, Mode::Train);
            order.write(&path("work"), &path("drawn")).unwrap();
            order.write(&path("again"), &path("other")).unwrap();
            for file in [DESCRIPTION_FILE, WEIGHTS_FILE, BATCHES_FILE] {
                assert!(
                    fs::read(path("work").join(file)).unwrap() == fs::read(path("again").join(file)).unwrap(),
                    "{file}"
                );
            }
            let description = Description::read(&path("work")).unwrap();
            assert_eq!(
                (description.model.as_str(), description.batches, description.weights.len()),
                (model, BATCHES, 16)
            );
            let is_text = model.starts_with("bert") || model.starts_with("electra");
            assert_eq!(description.settings().dropout, if is_text { 0.1 } else { 0.0 });

            // All that the model has, in the form of files, and nothing else.
            let specs = order.work().build().unwrap().specs;
            let file = TensorFile::open(&path("work").join(WEIGHTS_FILE)).unwrap();
            let read: Vec<(String, Vec<usize>, Vec<f32>)> = file
                .names()
                .map(|name| (name.to_owned(), file.shape(name).unwrap().to_vec(), file.read_f32(name).unwrap()))
                .collect();
            let tensors: Vec<ExternalTensor<'_>> =
                read.iter().map(|(name, shape, data)| ExternalTensor { name, shape, data }).collect();
            let names = registry::find(model).unwrap().family().names();
            for (spec, data) in load_into(&specs, names, &tensors).unwrap() {
                let is_settled = model == "efficientdet-tiny" && spec.kind == ParamKind::Statistic;
                assert!((data == initialise(spec, 5)) != is_settled, "{}", spec.name);
            }
            let batches = TensorFile::open(&path("work").join(BATCHES_FILE)).unwrap();
            for name in batches.names() {
                assert_eq!(batches.shape(name).unwrap()[..2], [BATCHES, 3], "{name}");
            }
            assert_eq!(batches.names().count(), feeds, "{model}");
            fs::remove_dir_all(path("again")).unwrap();
            fs::remove_dir_all(path("other")).unwrap();
        }
    }

    #[test]
    fn what_is_written_is_what_is_run() {
        let bert = order("bert-tiny", Mode::Train).describe(String::new()).unwrap();
        let number = |map: &Map<String, Value>, name: &str| map[name].as_f64().unwrap();
        assert_eq!(bert.sizes["hidden_act"], "gelu_new");
        assert_eq!((number(&bert.sizes, "sequence_length"), number(&bert.sizes, "predictions")), (16.0, 2.0));
        assert_eq!((number(&bert.training, "eps"), number(&bert.training, "clip_norm")), (1e-6, 1.0));
        assert_eq!(bert.training["bias_correction"], true);
        assert!(bert.settings().clip && bert.normalise.is_none());
        let resnet = order("resnet50", Mode::Train).describe(String::new()).unwrap();
        assert_eq!((&resnet.sizes["layers"], &resnet.sizes["block"]), (&json!([3, 4, 6, 3]), &json!("bottleneck")));
        assert!((resnet.normalise.unwrap()["mean"][0].as_f64().unwrap() - 123.675).abs() < 1e-9);
        assert_eq!((number(&resnet.training, "momentum"), &resnet.training["clip_norm"]), (0.875, &Value::Null));
        let detector = |mode, outputs| {
            let order = order("efficientdet-d0", mode);
            let settings = StepSettings { outputs, ..order.settings };
            Order { settings, ..order }.describe(String::new()).unwrap()
        };
        let (detections, network) = (DetectorOutputs::Detections, DetectorOutputs::Network);
        let trained = detector(Mode::Train, detections);
        assert_eq!((number(&trained.sizes, "image_size"), number(&trained.sizes, "classes")), (512.0, 91.0));
        assert_eq!((number(&trained.training, "momentum"), &trained.training["decay_exclude"]), (0.9, &json!("none")));
        let loss = json!({ "alpha": 0.25, "gamma": 1.5, "delta": 0.1, "box_weight": 50.0, "l2": 4e-5 });
        assert_eq!((&trained.training["loss"], &trained.detection), (&loss, &None));
        for outputs in [detections, network] {
            let described = detector(Mode::Infer, outputs);
            assert_eq!((described.detection.is_some(), described.settings().outputs), (outputs == detections, outputs));
        }
        let order = order("resnet20-cifar", Mode::Train);
        assert!(matches!(order.describe(String::new()), Err(WorkError::NotCompared { .. })));
    }
}
