//! ELECTRA in pre-training as a family.

use super::infer::TokenClassifier;
use super::recipe::ElectraRecipe;
use super::{Networks, TERMS, names, workload};
use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::{Override, Recipe, RecipePart};
use crate::tasks::family::{
    Benchmark, BuildStep, EmbeddingTable, Family, Fitted, InputKind, ModelInfo, Network, NetworkForm, Recognised,
    SampleInfo,
};
use crate::tasks::infer::{PredictOptions, Predictor};
use crate::tasks::text::vocabulary_beside;
use crate::tasks::text::{EncoderShape, Encoders, TextTask, step_settings, usual_step};
use crate::tasks::{Evaluation, MetricSchema, Task};
use crate::workload::{ComparedWork, Mode, NamedSetting, StepSettings, Work, Workload};
use bessemer_data::text;
use bessemer_models::bert::Sequences;
use bessemer_models::electra::names::{NAMES, in_discriminator};
use bessemer_models::electra::{self, ELECTRAS, ElectraSpec};
use bessemer_models::{ModelError, Summary, WeightNames};
use bessemer_weights::{JointWeights, NamedTensor};
use std::path::Path;

/// ELECTRAs, for pre-training.
pub struct Electras;

/// The family.
pub static FAMILY: Electras = Electras;

/// Its encoders.
pub(super) static ENCODERS: Encoders = Encoders {
    prefix: "electra.",
    noun: "an ELECTRA",
    names: &NAMES,
    heads: &["generator.", "generator_predictions.", "generator_lm_head.", "discriminator_predictions."],
    models: encoders,
};

const RECIPES: [(&str, &str); 3] = [
    ("electra-base-phase1", include_str!("recipes/electra-base-phase1.toml")),
    ("electra-base-phase2", include_str!("recipes/electra-base-phase2.toml")),
    ("electra-small-text", include_str!("recipes/electra-small-text.toml")),
];

fn encoders() -> Vec<(ModelInfo, EncoderShape)> {
    let encoder = |spec: &ElectraSpec| {
        let config = (spec.config)();
        let info = ModelInfo { name: spec.name, description: spec.description, variants: spec.variants };
        (info, EncoderShape::of(config.embedding_size, &config.encoder))
    };
    ELECTRAS.iter().map(encoder).collect()
}

impl Family for Electras {
    fn noun(&self) -> &'static str {
        "models that are pre-trained as ELECTRA"
    }

    fn models(&self) -> Vec<ModelInfo> {
        ENCODERS.list()
    }

    fn short_names(&self) -> &'static [(&'static str, &'static str)] {
        &[("electra", "electra-base")]
    }

    fn representatives(&self) -> &'static [&'static str] {
        &["electra-tiny"]
    }

    fn benchmark(&self) -> Benchmark {
        Benchmark { model: "electra-base", train_batches: &[16, 4], infer_batches: &[16, 1] }
    }

    fn summary(&self, model: &str) -> Result<Summary, ModelError> {
        electra::find(model)?.summary()
    }

    fn sample(&self, model: &str) -> Result<SampleInfo, ModelError> {
        Ok(SampleInfo::of_tokens(&(electra::find(model)?.config)().encoder, electra::SUMMARY_LENGTH))
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

    fn default_recipe(&self, model: &str, _: Option<&str>) -> &'static str {
        if model == "electra-base" { "electra-base-phase1" } else { "electra-small-text" }
    }

    fn fields_of_step(&self, _: &str, settings: &StepSettings) -> Vec<Override> {
        vec![Override::new("text.sequence_length", settings.sequence_length as i64)]
    }

    fn recipe(&self) -> RecipePart {
        RecipePart::of::<ElectraRecipe>()
    }

    fn open(&self, recipe: &Recipe, _: Option<&Path>) -> Result<Box<dyn Task>, TrainError> {
        Ok(Box::new(TextTask::<Networks>::open(recipe)?))
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
        Ok(Box::new(TokenClassifier::new(model, weights, options)))
    }

    fn recognise(&self, tensors: &[NamedTensor<'_>]) -> Option<Recognised> {
        ENCODERS.recognise(tensors)
    }

    fn embeddings(&self, tensors: &[NamedTensor<'_>], recipe: Option<&Recipe>) -> Option<EmbeddingTable> {
        let own = recipe.and_then(|recipe| recipe.own::<ElectraRecipe>().ok());
        ENCODERS.embeddings(tensors, own.map(|own| own.vocabulary.vocab_multiple))
    }

    fn fitted(&self, model: &str, trained: &LoadedWeights, path: &Path) -> Result<Fitted, TrainError> {
        ENCODERS.check(model, &trained.tensors, &trained.origin)?;
        let networks = Networks::in_weights(model, trained)?.for_vocabulary(vocabulary_beside(path).as_deref())?;
        let sequences = Sequences { batch: 1, length: 1, predictions: 1 };
        let model = electra::evaluate(&networks.config, sequences, &networks.options)?;
        let folder = Box::new(move |folder: &Path, tensors: &[NamedTensor<'static>], vocabulary: &_| {
            names::write_folders(&networks, folder, tensors, vocabulary)
        });
        Ok(Fitted { model, folder: Some(folder) })
    }

    fn network(
        &self,
        model: &str,
        trained: &LoadedWeights,
        _: &Path,
        batch: usize,
        form: &NetworkForm,
    ) -> Result<Network, TrainError> {
        form.check_without_image(model)?;
        form.check_without_outputs(model)?;
        let Networks { config, options } = Networks::in_weights(model, trained)?;
        let length = self.usual_step(form.sequence_length).sequence_length;
        let sequences = Sequences { batch, length, predictions: 1 };
        let model = electra::infer_discriminator(&config, sequences, &options.network)?;
        Ok(Network { has: |name| in_discriminator(name).is_some(), ..Network::of_text(model) })
    }

    fn joint_weights(&self) -> Option<&'static JointWeights> {
        Some(&names::JOINT)
    }

    fn usual_step(&self, sequence_length: Option<usize>) -> StepSettings {
        let sequence_length = sequence_length.unwrap_or(StepSettings::default().sequence_length);
        let options = text::ElectraOptions { sequence_length, ..text::ElectraOptions::default() };
        usual_step(sequence_length, options.predictions())
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
        Some("ELECTRA in pre-training")
    }

    fn comparison_group(&self, _: &str) -> Option<&'static str> {
        Some("electra")
    }

    fn compared_work(&self, work: &Work<'_>) -> Result<Option<ComparedWork>, ModelError> {
        workload::compared(work).map(Some)
    }
}
