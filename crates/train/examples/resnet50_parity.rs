//! Compares ResNet-50 at full size with an independent implementation: logits, every gradient, ten SGD steps.
//!
//! ```text
//! python peers/pytorch/export_resnet50_parity.py --out DIR --images DATA/val
//! cargo run --release -p bessemer-train --example resnet50_parity -- DIR
//! ```
//!
//! The reference is a float64 run. Exits with 1 if anything is farther from it than the tolerances allow.
#![forbid(unsafe_code)]

use bessemer_cpu::{CpuOptions, Executor};
use bessemer_ir::Value;
use bessemer_ir::autodiff::gradients;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_models::classifier::forward_loss;
use bessemer_models::{Architecture, ExternalTensor, LossOptions, Model, ModelOptions, find, load_into};
use bessemer_nn::{DecayExclude, Optimizer, ParamSpec, Schedule, Sgd, TrainConfig};
use bessemer_train::NamedTensor;
use bessemer_train::checkpoint::read_safetensors;
use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Largest relative L2 distance of logits.
const LOGITS: f64 = 1e-4;
/// Largest relative L2 distance of a gradient, or twice the distance of the peer's own float32 run if that is more.
const GRADIENT: f64 = 1e-3;
/// Largest relative distance of a loss, or twice the peer's.
const LOSS: f64 = 1e-3;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Parity {
    dir: PathBuf,
    expected: serde_json::Value,
    architecture: Architecture,
    options: ModelOptions,
    loss: LossOptions,
    cpu: CpuOptions,
    tensors: HashMap<String, NamedTensor<'static>>,
    failures: usize,
}

fn main() -> ExitCode {
    let Some(dir) = std::env::args().nth(1) else {
        eprintln!("usage: resnet50_parity DIR, a folder written by export_resnet50_parity.py");
        return ExitCode::from(2);
    };
    match Parity::open(Path::new(&dir)).and_then(Parity::run) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => {
            eprintln!("{failures} values are farther from the reference than allowed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn by_name(path: &Path) -> Result<HashMap<String, NamedTensor<'static>>> {
    Ok(read_safetensors(path)?.into_iter().map(|t| (t.name.to_string(), t)).collect())
}

/// `|a - b| / |b|` in the L2 norm.
fn distance(actual: &[f32], expected: &[f32]) -> f64 {
    let pairs = || actual.iter().zip(expected).map(|(&a, &b)| (f64::from(a), f64::from(b)));
    let difference: f64 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
    let norm: f64 = pairs().map(|(_, b)| b * b).sum();
    (difference / norm.max(f64::MIN_POSITIVE)).sqrt()
}

impl Parity {
    fn open(dir: &Path) -> Result<Parity> {
        let expected: serde_json::Value = serde_json::from_slice(&std::fs::read(dir.join("expected.json"))?)?;
        let tensors = by_name(&dir.join("tensors.safetensors"))?;
        let spec = find("resnet50")?;
        let smoothing = expected["label_smoothing"].as_f64().ok_or("expected.json lacks label_smoothing")?;
        Ok(Parity {
            dir: dir.to_path_buf(),
            architecture: spec.architecture,
            options: spec.options(),
            loss: LossOptions { label_smoothing: smoothing, mixup: None },
            cpu: CpuOptions::default(),
            expected,
            tensors,
            failures: 0,
        })
    }

    fn run(mut self) -> Result<usize> {
        self.inference()?;
        self.gradients()?;
        self.training()?;
        Ok(self.failures)
    }

    fn batch(&self) -> usize {
        self.tensors["images"].shape[0]
    }

    fn check(&mut self, what: &str, value: f64, allowed: f64) {
        let failed = value > allowed || value.is_nan();
        self.failures += usize::from(failed);
        println!("{what:<34} {value:9.2e}  allowed {allowed:8.2e}{}", if failed { "  FAILED" } else { "" });
    }

    fn peer_distance(&self, path: &[&str]) -> f64 {
        path.iter().fold(&self.expected["float32"]["relative_l2"], |v, key| &v[key]).as_f64().unwrap_or(0.0)
    }

    /// An executor with the exported weights and batch.
    fn executor(&self, graph: &bessemer_ir::Graph, specs: &[ParamSpec], with_labels: bool) -> Result<Executor> {
        let mut executor = Executor::new(compile(graph, &self.cpu, &CompileOptions::default())?, self.cpu)?;
        let mut weights = read_safetensors(&self.dir.join("weights.safetensors"))?;
        weights.retain(|tensor| !tensor.name.ends_with(".num_batches_tracked"));
        let data: Vec<Vec<f32>> = weights.iter().map(NamedTensor::to_f32).collect::<std::result::Result<_, _>>()?;
        let external: Vec<ExternalTensor<'_>> = weights
            .iter()
            .zip(&data)
            .map(|(t, data)| ExternalTensor { name: &t.name, shape: &t.shape, data })
            .collect();
        for (spec, values) in load_into(specs, &external)? {
            executor.write_f32(&spec.name, &values)?;
        }
        executor.write("images", &self.tensors["images"].data)?;
        if with_labels {
            executor.write("labels", &self.tensors["labels"].data)?;
        }
        Ok(executor)
    }

    fn inference(&mut self) -> Result<()> {
        let model = Model::infer(self.architecture, &self.options, self.batch())?;
        let mut executor = self.executor(&model.graph, &model.specs, false)?;
        executor.run()?;
        let expected = self.tensors["logits_eval"].to_f32()?;
        self.check("logits, inference", distance(executor.output_f32("logits")?, &expected), LOGITS);
        Ok(())
    }

    fn gradients(&mut self) -> Result<()> {
        let (mut builder, loss) = forward_loss(self.architecture, &self.options, &self.loss, self.batch())?;
        let params: Vec<ParamSpec> = builder.specs().iter().filter(|s| s.is_trainable()).cloned().collect();
        let values: Vec<Value> = params.iter().map(|s| s.value).collect();
        let grads = gradients(&mut builder.graph, loss, &values)?;
        builder.graph.output("loss", loss);
        for (param, grad) in params.iter().zip(grads) {
            builder.graph.output(&param.name, grad);
        }
        let (graph, specs) = builder.finish();
        let mut executor = self.executor(&graph, &specs, true)?;
        executor.run()?;
        let logits = self.tensors["logits_train"].to_f32()?;
        self.check("logits, training", distance(executor.output_f32("logits")?, &logits), LOGITS);
        let loss = self.expected["loss"].as_f64().ok_or("expected.json lacks loss")?;
        self.check("loss", (f64::from(executor.scalar("loss")?) / loss - 1.0).abs(), LOGITS);
        let expected = by_name(&self.dir.join("gradients.safetensors"))?;
        for param in &params {
            let actual = param.to_external(executor.output_f32(&param.name)?);
            let peer = self.peer_distance(&["gradients", &param.name]);
            let distance = distance(&actual, &expected[&param.name].to_f32()?);
            self.check(&param.name, distance, GRADIENT.max(2.0 * peer));
        }
        Ok(())
    }

    fn training(&mut self) -> Result<()> {
        let sgd = &self.expected["sgd"];
        let number = |key: &str| sgd[key].as_f64().ok_or(format!("expected.json lacks sgd.{key}"));
        let optimizer = Optimizer::Sgd(Sgd {
            momentum: number("momentum")?,
            nesterov: false,
            weight_decay: number("weight_decay")?,
            decay_exclude: DecayExclude::BnSubstring,
        });
        let config = TrainConfig::new(optimizer, Schedule::constant(number("lr")?));
        let model = Model::train(self.architecture, &self.options, &self.loss, &config, self.batch())?;
        let mut executor = self.executor(&model.graph, &model.specs, true)?;
        let losses = |v: &serde_json::Value| -> Vec<f64> {
            v["losses"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_f64).collect()
        };
        let (expected, peer) = (losses(sgd), losses(&self.expected["float32"]));
        if expected.len() < 10 || peer.len() != expected.len() {
            return Err("expected.json lacks the losses of ten steps".into());
        }
        for (step, (&expected, &peer)) in expected.iter().zip(&peer).enumerate() {
            executor.run()?;
            let error = |loss: f64| (loss / expected - 1.0).abs();
            let allowed = LOSS.max(2.0 * error(peer));
            self.check(&format!("loss of step {step}"), error(f64::from(executor.scalar("loss")?)), allowed);
        }
        Ok(())
    }
}
