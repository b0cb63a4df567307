//! A family that is nothing but this folder and its line in the registry: what `docs/adding-a-model.md` describes, done.

mod graph;
mod points;
mod task;
mod tests;

use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::{Range, Recipe, RecipePart, family_recipe, section};
use crate::session::EvalSession;
use crate::tasks::family::{
    Benchmark, Family, Fitted, InputKind, ModelInfo, Network, NetworkForm, Recognised, SampleInfo,
};
use crate::tasks::infer::{Part, PredictOptions, Prediction, Predictor, Shown};
use crate::tasks::{Array, Better, EachInput, Evaluation, Feeds, Metric, MetricSchema, ReferenceNames, Task};
use crate::workload::{Fill, Mode, Work, Workload};
use bessemer_models::{ModelError, Summary, WeightNames};
use bessemer_nn::{Optimizer, Sgd};
use bessemer_weights::NamedTensor;
use serde::Serialize;
use std::path::Path;
use task::{HeldOut, Quadrants};

section! {
    /// In `[model]`.
    struct ModelFields {
        /// Units of the hidden layer.
        pub hidden: u64 = 16 => Range::closed(1.0, 4096.0);
    }
}

section! {
    /// In `[points]`.
    struct PointFields {
        /// Least distance of a point from the axes.
        pub margin: f64 = 0.0 => Range::below(0.0, 1.0);
    }
}

family_recipe! {
    /// The own part of a recipe.
    struct PerceptronRecipe {
        "model" => pub model: ModelFields,
        "points" => pub points: PointFields,
    }
}

static TERMS: MetricSchema = MetricSchema {
    samples: "points",
    unit: "points/s",
    parts: &[],
    metrics: &[Metric::share("accuracy", "accuracy", "points in the right class (%)", ["correct", "total"])],
    best: ("accuracy", Better::Higher),
    reference: ReferenceNames::NONE,
};

/// Perceptrons.
pub(super) struct Perceptrons;

/// The family.
pub(super) static FAMILY: Perceptrons = Perceptrons;

const MODEL: ModelInfo =
    ModelInfo { name: "perceptron-16", description: "One hidden layer of 16 units", variants: &["model.hidden=32"] };
const HIDDEN: usize = 16;

impl Family for Perceptrons {
    fn noun(&self) -> &'static str {
        "perceptrons"
    }

    fn models(&self) -> Vec<ModelInfo> {
        vec![MODEL]
    }

    fn representatives(&self) -> &'static [&'static str] {
        &[MODEL.name]
    }

    fn benchmark(&self) -> Benchmark {
        Benchmark { model: MODEL.name, train_batches: &[4], infer_batches: &[1] }
    }

    fn summary(&self, _: &str) -> Result<Summary, ModelError> {
        Ok(Summary::of(&graph::infer(HIDDEN, 1)?))
    }

    fn sample(&self, _: &str) -> Result<SampleInfo, ModelError> {
        Ok(SampleInfo { shape: vec![2], text: "2 coordinates".to_owned(), classes: graph::CLASSES })
    }

    fn input(&self) -> InputKind {
        InputKind::Texts
    }

    fn names(&self) -> &'static WeightNames {
        &graph::NAMES
    }

    fn metric_schema(&self) -> &'static MetricSchema {
        &TERMS
    }

    fn recipes(&self) -> &'static [(&'static str, &'static str)] {
        &[("quadrants", include_str!("recipes/quadrants.toml"))]
    }

    fn default_recipe(&self, _: &str, _: Option<&str>) -> &'static str {
        "quadrants"
    }

    fn recipe(&self) -> RecipePart {
        RecipePart::of::<PerceptronRecipe>()
    }

    fn open(&self, recipe: &Recipe, _: Option<&Path>) -> Result<Box<dyn Task>, TrainError> {
        Ok(Box::new(Quadrants { recipe: recipe.clone(), own: recipe.own::<PerceptronRecipe>()?.clone() }))
    }

    fn evaluation(
        &self,
        model: &str,
        weights: &Path,
        _: &Path,
        options: &EvaluateOptions,
    ) -> Result<(Box<dyn Evaluation>, LoadedWeights), TrainError> {
        let trained = LoadedWeights::load(model, weights, options.weights)?;
        let recipe =
            trained.recipe.clone().ok_or_else(|| TrainError::setting("the weights", model, "of a run alone"))?;
        let own = recipe.own::<PerceptronRecipe>()?.clone();
        Ok((Box::new(HeldOut(Quadrants { recipe, own })), trained))
    }

    fn predictor(
        &self,
        model: &'static str,
        weights: &Path,
        options: &PredictOptions,
    ) -> Result<Box<dyn Predictor>, TrainError> {
        let trained = LoadedWeights::load(model, weights, options.weights)?;
        let mut session = EvalSession::new(graph::infer(HIDDEN, 1)?, 1, &options.compute)?;
        session.load_weights(&trained.tensors, &trained.origin)?;
        Ok(Box::new(PointClassifier(session)))
    }

    fn recognise(&self, tensors: &[NamedTensor<'_>]) -> Option<Recognised> {
        let own = |name: &str| tensors.iter().find(|tensor| graph::NAMES.canonical(&tensor.name) == name);
        let hidden = *own("hidden.weight")?.shape.first()?;
        let models = if hidden == HIDDEN { vec![MODEL.name] } else { Vec::new() };
        Some(Recognised { what: format!("a perceptron of {hidden} hidden units"), models, known: tensors.len() })
    }

    fn network(
        &self,
        _: &str,
        _: &LoadedWeights,
        _: &Path,
        batch: usize,
        _: &NetworkForm,
    ) -> Result<Network, TrainError> {
        Ok(Network::of_text(graph::infer(HIDDEN, batch)?))
    }

    fn fitted(&self, _: &str, _: &LoadedWeights, _: &Path) -> Result<Fitted, TrainError> {
        Ok(Fitted { model: graph::infer(HIDDEN, 1)?, folder: None })
    }

    fn workload(&self, work: &Work<'_>) -> Result<Workload, ModelError> {
        let sgd = Sgd { momentum: 0.9, ..Sgd::default() };
        let model = match work.mode {
            Mode::Infer => graph::infer(HIDDEN, work.batch_size)?,
            Mode::Train => graph::train(HIDDEN, work.batch_size, &work.train_config(Optimizer::Sgd(sgd), 1e-3))?,
        };
        Ok(Workload::new(model, Fill::Below(graph::CLASSES), Vec::new()))
    }
}

/// Classifies points such as `0.5 -0.5`.
struct PointClassifier(EvalSession);

#[derive(Serialize)]
struct Classified {
    point: [f32; 2],
    class: i32,
}

impl Shown for Classified {
    const COLUMNS: &'static [&'static str] = &["x", "y", "class"];

    fn parts(&self) -> Vec<Part> {
        let [x, y] = self.point;
        vec![Part::Line(format!("{x} {y}: {}", self.class))]
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let [x, y] = self.point.map(|side| side.to_string());
        vec![vec![x, y, self.class.to_string()]]
    }
}

impl Predictor for PointClassifier {
    fn predict(&mut self, inputs: &[String], _: &dyn Fn(usize, usize)) -> Result<EachInput<Prediction>, TrainError> {
        let classify = |text: &String| {
            let sides: Vec<f32> = text.split(' ').filter_map(|side| side.parse().ok()).collect();
            let point: [f32; 2] =
                sides.try_into().map_err(|_| TrainError::setting("the point", text, "expected two numbers"))?;
            self.0.run(&Feeds::from([(graph::POINTS, Array::F32(point.to_vec()))]))?;
            let logits = self.0.output("logits")?;
            let class = i32::from(logits[1] > logits[0]);
            Ok(Prediction::new(&Classified { point, class }))
        };
        Ok(inputs.iter().map(classify).collect())
    }
}
