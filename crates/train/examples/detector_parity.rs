//! Compares a detector at full size with an independent implementation: outputs on all levels and of the heads of regions, losses,
//! every gradient.
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
use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;

/// Largest relative L2 distance of outputs, and relative one of losses, or twice that of the peer's own float32 runs if that is more:
/// of reference boxes that overlap an object alike, rounding chooses the match.
const OUTPUTS: f64 = 1e-4;
/// Largest relative L2 distance of a gradient, or twice the distance of the peer's own float32 runs if that is more.
const GRADIENT: f64 = 1e-3;
/// Pixels by which a region may lie elsewhere to be the same.
const SAME_REGION: f32 = 0.05;
/// Largest share of regions that only one side has: of scores that are alike, rounding chooses the proposals.
const OTHER_REGIONS: f64 = 0.01;

/// Outputs that are compared row by row: boxes of sampled regions, what they are, and what the heads make of them.
const OWN_REGIONS: [&str; 5] = ["own.regions", "own.kinds", "own.logits", "own.deltas", "own.masks"];

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
                let regions = [values.regions, values.kinds, values.logits, values.deltas, values.mask_logits];
                for (name, value) in OWN_REGIONS.into_iter().zip(regions) {
                    builder.graph.output(name, value);
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
        if pass.graph.find_output(OWN_REGIONS[0]).is_some() {
            failures += self.check_heads(&executor)?;
        }
        for (name, loss) in self.expected["losses"].as_object().ok_or("expected.json lacks losses")? {
            let loss = loss.as_f64().ok_or("a loss in expected.json is no number")?;
            let own = (f64::from(executor.scalar(name)?) / loss - 1.0).abs();
            failures += check(name, own, OUTPUTS.max(2.0 * self.peer("losses", name)));
        }
        let allowed = |name: &str| GRADIENT.max(2.0 * self.peer("gradients", name));
        Ok(failures + pass.check_gradients(self.dir, &executor, allowed)?)
    }

    /// How far the peer's own float32 runs are from the reference.
    fn peer(&self, kind: &str, name: &str) -> f64 {
        self.expected["float32"][kind][name].as_f64().unwrap_or(0.0)
    }

    /// Compares what the heads make of the regions that both sides chose.
    fn check_heads(&self, executor: &Executor) -> Result<usize> {
        let peer = by_name(&self.dir.join("heads.safetensors"))?;
        let floats = |name: &str| -> Result<Vec<f32>> { Ok(peer[name].to_f32()?) };
        let integers = |name: &str| bytemuck::pod_collect_to_vec::<u8, i32>(&peer[name].data);
        let [regions, _, logits, deltas, masks] = OWN_REGIONS.map(|name| executor.output_f32(name));
        let (regions, logits, deltas, masks) = (regions?, logits?, deltas?, masks?);
        let kinds: Vec<i32> = bytemuck::pod_collect_to_vec(executor.output(OWN_REGIONS[1])?);
        let (images, boxes) = (integers("images"), floats("boxes")?);
        let of_image = kinds.len() / self.feeds["images"].shape[0];
        // The peer's row of each region, and the number of its mask on both sides.
        let masks_of_peer: HashMap<i32, usize> = integers("rows").into_iter().zip(0..).collect();
        let (mut pairs, mut mask_pairs, mut own_masks, mut count) = (Vec::new(), Vec::new(), 0, 0);
        for (row, (kind, region)) in kinds.iter().zip(regions.chunks_exact(4)).enumerate() {
            let is_near = |other: &[f32]| region.iter().zip(other).all(|(a, b)| (a - b).abs() < SAME_REGION);
            let other = || {
                let rows = boxes.chunks_exact(4).zip(&images).enumerate();
                rows.into_iter().find(|(_, (b, image))| **image as usize == row / of_image && is_near(b))
            };
            let found = (*kind >= 0).then(other).flatten().map(|(number, _)| number);
            pairs.extend(found.map(|other| (row, other)));
            if *kind == 1 {
                let mask = found.and_then(|other| masks_of_peer.get(&(other as i32)));
                mask_pairs.extend(mask.map(|&other| (own_masks, other)));
                own_masks += 1;
            }
            count += usize::from(*kind >= 0);
        }
        let mut failures = 0;
        for (what, all, pairs) in [("regions", count, &pairs), ("regions of objects", own_masks, &mask_pairs)] {
            let others = 1.0 - pairs.len() as f64 / all as f64;
            failures += check(&format!("{what} of one side alone, of {all}"), others, OTHER_REGIONS);
        }
        let named = [("logits", logits, &pairs), ("deltas", deltas, &pairs), ("masks", masks, &mask_pairs)];
        for (name, own, pairs) in named {
            let (peer, len) = (floats(name)?, peer[name].shape[1..].iter().product());
            let own = rows_of(own, len, pairs.iter().map(|pair| pair.0));
            let peer = rows_of(&peer, len, pairs.iter().map(|pair| pair.1));
            failures += check(&format!("{name} of regions"), distance(&own, &peer, 0.0), OUTPUTS);
        }
        Ok(failures)
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

/// Some rows of `len` elements.
fn rows_of(elements: &[f32], len: usize, rows: impl Iterator<Item = usize>) -> Vec<f32> {
    rows.flat_map(|row| &elements[row * len..][..len]).copied().collect()
}
