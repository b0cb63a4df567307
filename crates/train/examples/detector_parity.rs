//! Compares a detector at full size with an independent implementation: outputs on all levels, losses, every gradient.
//!
//! ```text
//! python peers/pytorch/export_detector_parity.py mask-rcnn --data coco/ --out DIR       # or efficientdet-d0
//! cargo run --release -p bessemer-train --example detector_parity -- DIR
//! ```
//!
//! The reference is a float64 run. Exits with 1 if anything is farther from it than the tolerances allow.
#![forbid(unsafe_code)]

mod common;

use bessemer_cpu::Executor;
use bessemer_ir::{Graph, Value};
use bessemer_models::efficientdet::{self, DetectorOptions, LossOptions};
use bessemer_models::maskrcnn::{self, Flavour, TrainingOptions};
use bessemer_models::{Model, WeightNames};
use bessemer_nn::{Builder, Mode, ParamSpec, Ranks};
use common::{Pass, Result, Tensors, by_name, check, distance, executor, expected};
use serde_json::Value as Json;
use std::path::Path;
use std::process::ExitCode;

/// Largest relative L2 distance of outputs, and relative one of losses, or twice that of the peer's own float32 run if that is more:
/// of reference boxes that overlap an object alike, rounding chooses the match.
const OUTPUTS: f64 = 1e-4;
/// Largest relative L2 distance of a gradient, or twice the distance of the peer's own float32 run if that is more.
const GRADIENT: f64 = 1e-3;

fn main() -> ExitCode {
    common::compare("detector_parity", "export_detector_parity.py", |dir| Parity::open(dir)?.run())
}

struct Parity<'a> {
    dir: &'a Path,
    expected: Json,
    feeds: Tensors,
    outputs: Tensors,
}

impl<'a> Parity<'a> {
    fn open(dir: &'a Path) -> Result<Self> {
        let [feeds, outputs] = ["feeds", "outputs"].map(|name| by_name(&dir.join(format!("{name}.safetensors"))));
        Ok(Self { dir, expected: expected(dir)?, feeds: feeds?, outputs: outputs? })
    }

    /// The number of values that are too far from the reference.
    fn run(&self) -> Result<usize> {
        let batch = self.feeds["images"].shape[0];
        match self.expected["model"].as_str() {
            Some("mask-rcnn") => {
                let flavour = Flavour::Torchvision;
                let options = maskrcnn::find("mask-rcnn")?.options(flavour);
                let training = TrainingOptions { random_samples: false, ..TrainingOptions::new(flavour) };
                let (mut builder, values) = maskrcnn::forward(&options, &training, batch, Ranks::default())?;
                let levels =
                    [("pyramid", values.pyramid), ("objectness", values.objectness), ("deltas", values.anchor_deltas)];
                for (name, values) in levels {
                    for (level, value) in values.into_iter().enumerate() {
                        builder.graph.output(&format!("{name}.{level}"), value);
                    }
                }
                self.training((builder, values.loss), &maskrcnn::NAMES)
            }
            Some("efficientdet-d0") => {
                let published = efficientdet::find("efficientdet-d0")?.options();
                let options = DetectorOptions { num_classes: 90, ..published };
                let Model { graph, specs, names } = efficientdet::raw_outputs(&options, batch, Mode::Infer)?;
                let mut executor = self.executor(&graph, &specs, names)?;
                executor.run()?;
                let loss = LossOptions { l2: 0.0, ..LossOptions::default() };
                let step = efficientdet::forward_loss(&options, &loss, batch, Ranks::default())?;
                Ok(self.check_outputs(&graph, &executor)? + self.training(step, names)?)
            }
            _ => Err("expected.json lacks a known model".into()),
        }
    }

    /// An executor with the exported weights and those of the feeds that the graph has.
    fn executor(&self, graph: &Graph, specs: &[ParamSpec], names: &WeightNames) -> Result<Executor> {
        let feeds = self.feeds.iter().filter(|(name, _)| graph.find_input(name).is_some());
        executor(self.dir, graph, specs, names, feeds.map(|(name, tensor)| (name.as_str(), tensor)))
    }

    /// Runs a forward and backward pass, and compares its outputs, losses and gradients.
    fn training(&self, step: (Builder, Value), names: &WeightNames) -> Result<usize> {
        let pass = Pass::of(step)?;
        let mut executor = self.executor(&pass.graph, &pass.specs, names)?;
        executor.run()?;
        let mut failures = self.check_outputs(&pass.graph, &executor)?;
        for (name, loss) in self.expected["losses"].as_object().ok_or("expected.json lacks losses")? {
            let loss = loss.as_f64().ok_or("a loss in expected.json is no number")?;
            let peer = self.expected["float32"]["losses"][name].as_f64().unwrap_or(loss);
            let [own, peer] = [f64::from(executor.scalar(name)?), peer].map(|found| (found / loss - 1.0).abs());
            failures += check(name, own, OUTPUTS.max(2.0 * peer));
        }
        let peer = |name: &str| self.expected["float32"]["relative_l2"]["gradients"][name].as_f64().unwrap_or(0.0);
        Ok(failures + pass.check_gradients(self.dir, &executor, |name| GRADIENT.max(2.0 * peer(name)))?)
    }

    /// Compares those outputs of the graph that the reference has.
    fn check_outputs(&self, graph: &Graph, executor: &Executor) -> Result<usize> {
        let mut failures = 0;
        for (name, _) in graph.outputs() {
            let Some(expected) = self.outputs.get(name) else { continue };
            failures += check(name, distance(executor.output_f32(name)?, &expected.to_f32()?, 0.0), OUTPUTS);
        }
        Ok(failures)
    }
}
