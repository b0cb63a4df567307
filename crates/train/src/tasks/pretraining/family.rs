//! BERT as a family.

use super::infer::MaskPredictor;
use super::model::config_of;
use super::recipe::BertRecipe;
use super::{Bert, TERMS, workload};
use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::{Override, Recipe, RecipePart};
use crate::tasks::family::{
    Benchmark, BuildStep, EmbeddingTable, Family, Fitted, InputKind, ModelInfo, Network, NetworkForm, Recognised,
    SampleInfo,
};
use crate::tasks::huggingface::{Description, write_folder};
use crate::tasks::infer::{PredictOptions, Predictor};
use crate::tasks::text::{EncoderShape, Encoders, TextTask, step_settings, usual_step};
use crate::tasks::{Evaluation, MetricSchema, Task};
use crate::workload::{ComparedWork, Mode, NamedSetting, StepSettings, Work, Workload};
use bessemer_models::bert::{self, BERTS, BertOptions, BertSpec, NAMES, Sequences};
use bessemer_models::{ModelError, Summary, WeightNames};
use bessemer_weights::NamedTensor;
use std::path::Path;

/// BERTs, for pre-training.
pub struct Berts;

/// The family.
pub static FAMILY: Berts = Berts;

/// Its encoders.
pub(super) static ENCODERS: Encoders =
    Encoders { prefix: "bert.", noun: "a BERT", names: &NAMES, heads: &["cls."], models: encoders };

const RECIPES: [(&str, &str); 4] = [
    ("bert-base-phase1", include_str!("recipes/bert-base-phase1.toml")),
    ("bert-base-phase2", include_str!("recipes/bert-base-phase2.toml")),
    ("bert-dlperf", include_str!("recipes/bert-dlperf.toml")),
    ("bert-small-text", include_str!("recipes/bert-small-text.toml")),
];

fn encoders() -> Vec<(ModelInfo, EncoderShape)> {
    let encoder = |spec: &BertSpec| {
        let config = (spec.config)();
        let info = ModelInfo { name: spec.name, description: spec.description, variants: spec.variants };
        (info, EncoderShape::of(config.hidden_size, &config))
    };
    BERTS.iter().map(encoder).collect()
}

impl Family for Berts {
    fn noun(&self) -> &'static str {
        "models that are pre-trained as BERT"
    }

    fn models(&self) -> Vec<ModelInfo> {
        ENCODERS.list()
    }

    fn short_names(&self) -> &'static [(&'static str, &'static str)] {
        &[("bert", "bert-base")]
    }

    fn representatives(&self) -> &'static [&'static str] {
        &["bert-tiny"]
    }

    fn benchmark(&self) -> Benchmark {
        Benchmark { model: "bert-base", train_batches: &[16, 4], infer_batches: &[16, 1] }
    }

    fn summary(&self, model: &str) -> Result<Summary, ModelError> {
        bert::find(model)?.summary()
    }

    fn sample(&self, model: &str) -> Result<SampleInfo, ModelError> {
        Ok(SampleInfo::of_tokens(&(bert::find(model)?.config)(), bert::SUMMARY_LENGTH))
    }

    fn input(&self) -> InputKind {
        InputKind::Texts
    }

    fn names(&self) -> &'static WeightNames {
        &NAMES
    }

    fn metric_schema(&self) -> &'static MetricSchema {
        &TERMS
    }

    fn recipes(&self) -> &'static [(&'static str, &'static str)] {
        &RECIPES
    }

    fn default_recipe(&self, model: &str, data: Option<&str>) -> &'static str {
        match model {
            _ if data == Some("synthetic") => "bert-dlperf",
            "bert-base" => "bert-base-phase1",
            _ => "bert-small-text",
        }
    }

    fn fields_of_step(&self, _: &str, settings: &StepSettings) -> Vec<Override> {
        let sizes =
            [("text.sequence_length", settings.sequence_length), ("text.max_predictions", settings.predictions)];
        sizes.into_iter().map(|(field, size)| Override::new(field, size as i64)).collect()
    }

    fn recipe(&self) -> RecipePart {
        RecipePart::of::<BertRecipe>()
    }

    fn open(&self, recipe: &Recipe, _: Option<&Path>) -> Result<Box<dyn Task>, TrainError> {
        Ok(Box::new(TextTask::<Bert>::open(recipe)?))
    }

    fn evaluation(
        &self,
        model: &str,
        weights: &Path,
        data: &Path,
        options: &EvaluateOptions,
    ) -> Result<(Box<dyn Evaluation>, LoadedWeights), TrainError> {
        super::standalone_evaluation(model, weights, data, options)
    }

    fn predictor(
        &self,
        model: &'static str,
        weights: &Path,
        options: &PredictOptions,
    ) -> Result<Box<dyn Predictor>, TrainError> {
        Ok(Box::new(MaskPredictor::new(model, weights, options)))
    }

    fn recognise(&self, tensors: &[NamedTensor<'_>]) -> Option<Recognised> {
        ENCODERS.recognise(tensors)
    }

    fn embeddings(&self, tensors: &[NamedTensor<'_>], recipe: Option<&Recipe>) -> Option<EmbeddingTable> {
        let own = recipe.and_then(|recipe| recipe.own::<BertRecipe>().ok());
        ENCODERS.embeddings(tensors, own.map(|own| own.vocabulary.vocab_multiple))
    }

    fn fitted(&self, model: &str, trained: &LoadedWeights, path: &Path) -> Result<Fitted, TrainError> {
        ENCODERS.check(model, &trained.tensors, &trained.origin)?;
        let config = config_of(model, trained, path)?;
        let sequences = Sequences { batch: 1, length: 1, predictions: 1 };
        let model = bert::infer(&config, sequences, &BertOptions::default())?;
        let description = Description::new(&config, "bert", "BertForPreTraining");
        let folder = Box::new(move |folder: &Path, tensors: &[NamedTensor<'static>], vocabulary: &_| {
            write_folder(folder, &description, tensors, vocabulary)
        });
        Ok(Fitted { model, folder: Some(folder) })
    }

    fn network(
        &self,
        model: &str,
        trained: &LoadedWeights,
        path: &Path,
        batch: usize,
        form: &NetworkForm,
    ) -> Result<Network, TrainError> {
        form.check_without_image(model)?;
        form.check_without_outputs(model)?;
        let step = self.usual_step(form.sequence_length);
        let sequences = Sequences { batch, length: step.sequence_length, predictions: step.predictions };
        let config = config_of(model, trained, path)?;
        Ok(Network::of_text(bert::infer(&config, sequences, &BertOptions::default())?))
    }

    fn usual_step(&self, sequence_length: Option<usize>) -> StepSettings {
        let usual = StepSettings::default();
        let sequence_length = sequence_length.unwrap_or(usual.sequence_length);
        let predictions = if sequence_length >= workload::LONG_SEQUENCE { 80 } else { usual.predictions };
        usual_step(sequence_length, predictions)
    }

    fn step_settings(&self, _: Mode, settings: &StepSettings) -> Vec<NamedSetting> {
        step_settings(settings).into_iter().chain([("predictions", settings.predictions.into())]).collect()
    }

    fn workload(&self, work: &Work<'_>) -> Result<Workload, ModelError> {
        workload::build(work)
    }

    fn evaluation_step(&self) -> Option<BuildStep> {
        Some(workload::evaluation)
    }

    fn compared(&self) -> Option<&'static str> {
        Some("BERT")
    }

    fn comparison_group(&self, _: &str) -> Option<&'static str> {
        Some("bert")
    }

    fn compared_work(&self, work: &Work<'_>) -> Result<Option<ComparedWork>, ModelError> {
        workload::compared(work).map(Some)
    }
}
