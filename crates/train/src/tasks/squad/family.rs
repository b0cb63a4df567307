//! ELECTRA that answers questions as a family.

use super::infer::QuestionPredictor;
use super::recipe::QuestionRecipe;
use super::weights::HEADS;
use super::{Squad, TERMS, model, workload};
use crate::error::TrainError;
use crate::evaluate::EvaluateOptions;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::{Override, Recipe, RecipePart};
use crate::tasks::electra::description;
use crate::tasks::family::{
    Benchmark, EmbeddingTable, Family, Fitted, InputKind, ModelInfo, Network, NetworkForm, Recognised, SampleInfo,
};
use crate::tasks::huggingface::write_folder;
use crate::tasks::infer::{PredictOptions, Predictor};
use crate::tasks::text::{EncoderShape, Encoders, step_settings, usual_step};
use crate::tasks::{Evaluation, MetricSchema, Task};
use crate::workload::{ComparedWork, Mode, NamedSetting, StepSettings, Work, Workload};
use bessemer_models::electra::names::NAMES;
use bessemer_models::electra::{self, ELECTRA_SQUADS, ElectraSquadSpec};
use bessemer_models::{ModelError, Summary, WeightNames};
use bessemer_weights::NamedTensor;
use std::path::Path;

/// ELECTRAs that answer questions.
pub struct Answerers;

/// The family.
pub static FAMILY: Answerers = Answerers;

/// Its encoders.
pub(super) static ENCODERS: Encoders =
    Encoders { prefix: "electra.", noun: "an ELECTRA", names: &NAMES, heads: &HEADS, models: encoders };

const RECIPES: [(&str, &str); 4] = [
    ("electra-squad", include_str!("recipes/electra-squad.toml")),
    ("electra-squad-v2", include_str!("recipes/electra-squad-v2.toml")),
    ("electra-squad-small", include_str!("recipes/electra-squad-small.toml")),
    ("electra-squad-tiny", include_str!("recipes/electra-squad-tiny.toml")),
];

/// Tokens of a window that is measured.
const WINDOW: usize = 384;
/// Tokens of the windows of a model whose tensors alone are wanted: as many as the largest beam.
const CONVERTED_WINDOW: usize = 64;

fn encoders() -> Vec<(ModelInfo, EncoderShape)> {
    let encoder = |spec: &ElectraSquadSpec| {
        let config = (spec.config)();
        let info = ModelInfo { name: spec.name, description: spec.description, variants: spec.variants };
        (info, EncoderShape::of(config.embedding_size, &config.encoder))
    };
    ELECTRA_SQUADS.iter().map(encoder).collect()
}

impl Family for Answerers {
    fn noun(&self) -> &'static str {
        "models that answer questions"
    }

    fn models(&self) -> Vec<ModelInfo> {
        ENCODERS.list()
    }

    fn short_names(&self) -> &'static [(&'static str, &'static str)] {
        &[("electra-squad", "electra-base-squad")]
    }

    fn representatives(&self) -> &'static [&'static str] {
        &["electra-tiny-squad"]
    }

    fn benchmark(&self) -> Benchmark {
        Benchmark { model: "electra-base-squad", train_batches: &[4, 16], infer_batches: &[1, 32] }
    }

    fn summary(&self, model: &str) -> Result<Summary, ModelError> {
        electra::find_squad(model)?.summary()
    }

    fn sample(&self, model: &str) -> Result<SampleInfo, ModelError> {
        Ok(SampleInfo::of_tokens(&(electra::find_squad(model)?.config)().encoder, electra::SQUAD_SUMMARY_LENGTH))
    }

    fn input(&self) -> InputKind {
        InputKind::Questions
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
        match model {
            "electra-base-squad" | "electra-large-squad" => "electra-squad",
            "electra-tiny-squad" => "electra-squad-tiny",
            _ => "electra-squad-small",
        }
    }

    fn fields_of_step(&self, _: &str, settings: &StepSettings) -> Vec<Override> {
        vec![Override::new("squad.sequence_length", settings.sequence_length as i64)]
    }

    fn recipe(&self) -> RecipePart {
        RecipePart::of::<QuestionRecipe>()
    }

    fn open(&self, recipe: &Recipe, origin: Option<&Path>) -> Result<Box<dyn Task>, TrainError> {
        Ok(Box::new(Squad::open(recipe, origin)?))
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
        Ok(Box::new(QuestionPredictor::open(model, weights, options)?))
    }

    fn recognise(&self, tensors: &[NamedTensor<'_>]) -> Option<Recognised> {
        ENCODERS.recognise(tensors)
    }

    fn embeddings(&self, tensors: &[NamedTensor<'_>], _: Option<&Recipe>) -> Option<EmbeddingTable> {
        ENCODERS.embeddings(tensors, None)
    }

    fn fitted(&self, model: &str, trained: &LoadedWeights, path: &Path) -> Result<Fitted, TrainError> {
        let (config, head) = model::network_of(model, trained, path)?;
        let description = description(&config, "ElectraForQuestionAnswering");
        let folder = Box::new(move |folder: &Path, tensors: &[NamedTensor<'static>], vocabulary: &_| {
            write_folder(folder, &description, tensors, vocabulary)
        });
        Ok(Fitted { model: model::prediction(&config, head, 1, CONVERTED_WINDOW)?, folder: Some(folder) })
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
        let (config, head) = model::network_of(model, trained, path)?;
        let length = self.usual_step(form.sequence_length).sequence_length;
        Ok(Network::of_text(model::prediction(&config, head, batch, length)?))
    }

    fn usual_step(&self, sequence_length: Option<usize>) -> StepSettings {
        usual_step(sequence_length.unwrap_or(WINDOW), StepSettings::default().predictions)
    }

    fn step_settings(&self, _: Mode, settings: &StepSettings) -> Vec<NamedSetting> {
        step_settings(settings)
    }

    fn workload(&self, work: &Work<'_>) -> Result<Workload, ModelError> {
        workload::build(work)
    }

    fn compared(&self) -> Option<&'static str> {
        Some("ELECTRA with questions")
    }

    fn comparison_group(&self, _: &str) -> Option<&'static str> {
        Some("electra-squad")
    }

    fn compared_work(&self, work: &Work<'_>) -> Result<Option<ComparedWork>, ModelError> {
        workload::compared(work).map(Some)
    }
}
