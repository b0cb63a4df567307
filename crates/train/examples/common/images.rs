//! A classifier of images at full size: logits, every gradient and ten SGD steps beside a float64 run.

use crate::common::{Pass, Result, Tensors, by_name, check, distance, executor, expected};
use bessemer_cpu::Executor;
use bessemer_ir::Graph;
use bessemer_models::classifier::forward_loss;
use bessemer_models::{Architecture, LossOptions, Model, ModelOptions, find};
use bessemer_nn::{DecayExclude, Optimizer, ParamSpec, Ranks, Schedule, Sgd, TrainConfig};
use std::path::{Path, PathBuf};

/// Largest relative L2 distance of logits.
const LOGITS: f64 = 1e-4;
/// Largest relative L2 distance of a gradient, or twice the distance of the peer's own float32 run if that is more.
const GRADIENT: f64 = 1e-3;
/// Largest relative distance of a loss, or twice the peer's.
const LOSS: f64 = 1e-3;

/// The comparison of one model of the zoo.
pub(crate) struct Parity {
    dir: PathBuf,
    expected: serde_json::Value,
    architecture: Architecture,
    options: ModelOptions,
    loss: LossOptions,
    tensors: Tensors,
    failures: usize,
}

impl Parity {
    /// The comparison of `model`, as `change` makes its published form, with what is in `dir`.
    pub(crate) fn open(
        dir: &Path,
        model: &str,
        change: impl FnOnce(&mut ModelOptions, &serde_json::Value) -> Result<()>,
    ) -> Result<Parity> {
        let expected = expected(dir)?;
        let tensors = by_name(&dir.join("tensors.safetensors"))?;
        let spec = find(model)?;
        let mut options = spec.options();
        change(&mut options, &expected)?;
        let smoothing = expected["label_smoothing"].as_f64().ok_or("expected.json lacks label_smoothing")?;
        Ok(Parity {
            dir: dir.to_path_buf(),
            architecture: spec.architecture,
            options,
            loss: LossOptions { label_smoothing: smoothing, mixup: None },
            expected,
            tensors,
            failures: 0,
        })
    }

    /// Runs all; the number of values that are too far from the reference.
    pub(crate) fn run(mut self) -> Result<usize> {
        self.inference()?;
        self.gradients()?;
        self.training()?;
        Ok(self.failures)
    }

    fn batch(&self) -> usize {
        self.tensors["images"].shape[0]
    }

    fn peer_distance(&self, path: &[&str]) -> f64 {
        path.iter().fold(&self.expected["float32"]["relative_l2"], |v, key| &v[key]).as_f64().unwrap_or(0.0)
    }

    /// An executor with the exported weights and batch.
    fn executor(&self, graph: &Graph, specs: &[ParamSpec], feeds: &[&'static str]) -> Result<Executor> {
        executor(
            &self.dir,
            graph,
            specs,
            self.architecture.names(),
            feeds.iter().map(|&name| (name, &self.tensors[name])),
        )
    }

    fn inference(&mut self) -> Result<()> {
        let model = Model::infer(self.architecture, &self.options, self.batch())?;
        let mut executor = self.executor(&model.graph, &model.specs, &["images"])?;
        executor.run()?;
        let expected = self.tensors["logits_eval"].to_f32()?;
        self.failures += check("logits, inference", distance(executor.output_f32("logits")?, &expected, 0.0), LOGITS);
        Ok(())
    }

    fn gradients(&mut self) -> Result<()> {
        let pass =
            Pass::of(forward_loss(self.architecture, &self.options, &self.loss, self.batch(), Ranks::default())?)?;
        let mut executor = self.executor(&pass.graph, &pass.specs, &["images", "labels"])?;
        executor.run()?;
        let logits = self.tensors["logits_train"].to_f32()?;
        self.failures += check("logits, training", distance(executor.output_f32("logits")?, &logits, 0.0), LOGITS);
        let loss = self.expected["loss"].as_f64().ok_or("expected.json lacks loss")?;
        self.failures += check("loss", (f64::from(executor.scalar("loss")?) / loss - 1.0).abs(), LOGITS);
        let allowed = |name: &str| GRADIENT.max(2.0 * self.peer_distance(&["gradients", name]));
        self.failures += pass.check_gradients(&self.dir, &executor, allowed)?;
        Ok(())
    }

    fn training(&mut self) -> Result<()> {
        let sgd = &self.expected["sgd"];
        let number = |key: &str| sgd[key].as_f64().ok_or(format!("expected.json lacks sgd.{key}"));
        let optimizer = Optimizer::Sgd(Sgd {
            momentum: number("momentum")?,
            weight_decay: number("weight_decay")?,
            decay_exclude: DecayExclude::BnSubstring,
            ..Sgd::default()
        });
        let config = TrainConfig::new(optimizer, Schedule::constant(number("lr")?));
        let model = Model::train(self.architecture, &self.options, &self.loss, &config, self.batch())?;
        let mut executor = self.executor(&model.graph, &model.specs, &["images", "labels"])?;
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
            self.failures +=
                check(&format!("loss of step {step}"), error(f64::from(executor.scalar("loss")?)), allowed);
        }
        Ok(())
    }
}
