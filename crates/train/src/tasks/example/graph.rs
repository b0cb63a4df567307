//! A perceptron with one hidden layer: points of a plane to two classes.

use bessemer_ir::{DType, Value};
use bessemer_models::{Model, ModelError, WeightNames};
use bessemer_nn::loss::cross_entropy;
use bessemer_nn::train_step::build_train_step;
use bessemer_nn::{Builder, Linear, LinearOptions, Mode, Targets, TrainConfig};

pub(super) const CLASSES: usize = 2;
pub(super) const POINTS: &str = "points";
pub(super) const LABELS: &str = "labels";

/// Names in files: `fc1` of earlier programs is `hidden` here.
pub(super) static NAMES: WeightNames =
    WeightNames { read: |name| name.replace("fc1.", "hidden."), ..WeightNames::PLAIN };

/// The forward pass. Feed: `points`, `f32[N, 2]`. Output: `logits`, `f32[N, 2]`.
pub(super) fn infer(hidden: usize, batch: usize) -> Result<Model, ModelError> {
    let mut b = Builder::new(Mode::Infer);
    logits(&mut b, hidden, batch)?;
    let (graph, specs) = b.finish();
    Ok(Model { graph, specs, names: &NAMES })
}

/// A whole training step, with `labels`, `i32[N]`.
pub(super) fn train(hidden: usize, batch: usize, config: &TrainConfig) -> Result<Model, ModelError> {
    let mut b = Builder::new(Mode::Train);
    let logits = logits(&mut b, hidden, batch)?;
    let targets = Targets::new(b.feed(LABELS, DType::I32, [batch])?);
    let loss = b.scope("loss", |b| cross_entropy(&mut b.graph, logits, &targets, 0.0))?;
    build_train_step(&mut b, loss, config)?;
    let (graph, specs) = b.finish();
    Ok(Model { graph, specs, names: &NAMES })
}

fn logits(b: &mut Builder, hidden: usize, batch: usize) -> bessemer_nn::Result<Value> {
    let points = b.feed(POINTS, DType::F32, [batch, 2])?;
    let x = Linear::new(b, "hidden", 2, LinearOptions::uniform(2, hidden))?.apply(b, points)?;
    let x = b.graph.relu(x)?;
    let logits = Linear::new(b, "output", hidden, LinearOptions::uniform(hidden, CLASSES))?.apply(b, x)?;
    b.graph.output("logits", logits);
    Ok(logits)
}
