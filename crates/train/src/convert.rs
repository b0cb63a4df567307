//! Weight files under the names of other suites.

use crate::checkpoint::{
    DISCRIMINATOR_FOLDER, GENERATOR_FOLDER, NamedTensor, WeightOptions, load_weights, write_safetensors,
};
use crate::error::TrainError;
use crate::state::{load_strictly, named};
use crate::tasks::check_weights;
use crate::tasks::classification::classes_of;
use crate::tasks::electra::Networks;
use crate::tasks::huggingface::{Description, VocabularyPart, write_folder};
use crate::tasks::pretraining::{config_of, vocabulary_beside};
use crate::tasks::squad;
use crate::tasks::text;
use crate::trained::{Trained, recipe_of, vocabulary_of};
use bessemer_data::text::Vocabulary;
use bessemer_models::bert::{self, BertConfig, BertOptions, Sequences};
use bessemer_models::electra::{self, ElectraConfig, Generator, names};
use bessemer_models::weights::canonical_name;
use bessemer_models::{AnyModel, Model, ModelSpec, WeightsError, ZOO, find_any};
use bessemer_nn::ParamSpec;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// How tensors are called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// `layer1.0.conv1.weight`: torchvision's, timm's and this program's own.
    #[default]
    Torchvision,
    /// `layers.0.0.conv1.weight`: NVIDIA DeepLearningExamples (PyTorch).
    DeepLearningExamples,
    /// `bert.encoder.layer.0.attention.self.query.weight`, in a folder with `config.json` and `vocab.txt`.
    HuggingFace,
}

impl FromStr for Names {
    type Err = TrainError;

    fn from_str(name: &str) -> Result<Self, TrainError> {
        match name {
            "torchvision" | "timm" | "bessemer" => Ok(Self::Torchvision),
            "dle" => Ok(Self::DeepLearningExamples),
            "huggingface" => Ok(Self::HuggingFace),
            other => {
                let allowed = "expected torchvision, timm, dle, huggingface or bessemer";
                Err(TrainError::setting("the naming", other, allowed))
            }
        }
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torchvision => "torchvision",
            Self::DeepLearningExamples => "dle",
            Self::HuggingFace => "huggingface",
        })
    }
}

impl Names {
    /// This program's name `canonical` in this naming.
    fn of(self, canonical: &str) -> String {
        let renumbered = canonical.strip_prefix("layer").and_then(|rest| {
            let (number, rest) = rest.split_once('.')?;
            Some(format!("layers.{}.{rest}", number.parse::<usize>().ok()?.checked_sub(1)?))
        });
        match self {
            Self::Torchvision | Self::HuggingFace => canonical.to_owned(),
            Self::DeepLearningExamples => renumbered.unwrap_or_else(|| canonical.to_owned()),
        }
    }

    /// Whether a file in this naming may call a tensor so.
    fn allows(self, name: &str) -> bool {
        let name = name.strip_prefix("module.").unwrap_or(name);
        name == self.of(&canonical_name(name))
    }
}

/// What was converted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Converted {
    /// The model that the weights fit.
    pub model: &'static str,
    pub tensors: usize,
}

/// Settings of [`convert_weights`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ConvertOptions<'a> {
    /// Naming of the input; any that is known if absent.
    pub from: Option<Names>,
    /// Naming of the output.
    pub to: Names,
    /// The model; found by the tensors if absent.
    pub model: Option<&'a str>,
}

/// Writes the weights of a `.safetensors` file, checkpoint, run folder or folder of Hugging Face to a `.safetensors` file, or a
/// folder as Hugging Face has it, as F32 under other names. Counts of batches (`num_batches_tracked`) are left out.
///
/// # Errors
/// Names of another suite than `from`; weights that do not fit the model, or no model of the zoo; an output that exists.
pub fn convert_weights(input: &Path, output: &Path, options: &ConvertOptions<'_>) -> Result<Converted, TrainError> {
    if output.exists() {
        let allowed = "it exists already, choose another name";
        return Err(TrainError::setting("the output", output.display(), allowed));
    }
    let tensors = load_weights(input, WeightOptions { to_f32: true, ..WeightOptions::default() })?;
    let origin = input.display().to_string();
    if let Some(from) = options.from
        && let Some(tensor) = tensors.iter().find(|tensor| !from.allows(&tensor.name))
    {
        let allowed = format!("{origin} was said to be named as in {from}");
        return Err(TrainError::setting("a tensor's name", &tensor.name, allowed));
    }
    let trained = Trained { tensors, origin, recipe: recipe_of(input)?, vocabulary: vocabulary_of(input)? };
    let fitted = match options.model {
        Some(name) => Fitted::to(name, &trained, input)?,
        None => Fitted::find(&trained, input)?,
    };
    let loaded = load_strictly(&fitted.specs, &trained.tensors, &trained.origin)?;
    let converted: Vec<NamedTensor<'static>> = loaded
        .iter()
        .map(|(spec, data)| Ok(NamedTensor { name: options.to.of(&spec.name), ..named(spec, data)? }))
        .collect::<Result<_, TrainError>>()?;
    match (options.to, &fitted.text) {
        (Names::HuggingFace, Some(text)) => text.write(output, &converted, &vocabulary_part(input, &trained)?)?,
        (Names::HuggingFace, None) => {
            let allowed = format!("that is for models of text; {} holds {}", trained.origin, fitted.model);
            return Err(TrainError::setting("the naming", options.to, allowed));
        }
        _ => write_safetensors(output, &converted)?,
    }
    Ok(Converted { model: fitted.model, tensors: converted.len() })
}

/// The vocabulary beside weights, if there is one, and its identity.
///
/// # Errors
/// A vocabulary that cannot be read or is not that of the weights.
fn vocabulary_part(input: &Path, trained: &Trained) -> Result<VocabularyPart, TrainError> {
    let Some(file) = vocabulary_beside(input) else {
        return Ok(VocabularyPart { identity: trained.vocabulary.clone(), file: None });
    };
    let identity = Vocabulary::open(&file)?.identity();
    trained.weights().check_vocabulary(&identity, &file.display().to_string())?;
    Ok(VocabularyPart { identity: Some(identity), file: Some(file) })
}

/// A model of the zoo that weights are for.
struct Fitted {
    model: &'static str,
    specs: Vec<ParamSpec>,
    /// A network that Hugging Face has as well.
    text: Option<TextModel>,
}

enum TextModel {
    Bert(BertConfig),
    /// Discriminator and generator.
    Electra(Networks),
    /// An encoder with a head for questions.
    Questions(ElectraConfig),
}

/// Tokens of the windows of a model whose tensors alone are wanted: as many as the largest beam.
const CONVERTED_WINDOW: usize = 64;

impl TextModel {
    /// Writes a folder as Hugging Face has it; for ELECTRA a folder with two, `discriminator` and `generator`.
    fn write(
        &self,
        output: &Path,
        tensors: &[NamedTensor<'static>],
        vocabulary: &VocabularyPart,
    ) -> Result<(), TrainError> {
        let Networks { config, options } = match self {
            Self::Bert(config) => {
                return write_folder(output, &Description::bert(config, "BertForPreTraining"), tensors, vocabulary);
            }
            Self::Questions(config) => {
                let description = Description::electra(config, "ElectraForQuestionAnswering");
                return write_folder(output, &description, tensors, vocabulary);
            }
            Self::Electra(networks) => networks,
        };
        let named: Vec<(&str, &NamedTensor<'static>)> =
            tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let names::Split { discriminator, generator } = names::split(&named);
        let mut parts =
            vec![(DISCRIMINATOR_FOLDER, Description::electra(config, "ElectraForPreTraining"), discriminator)];
        if options.generator == Generator::Network {
            let small = config.generator(options.generator_fraction);
            parts.push((GENERATOR_FOLDER, Description::electra(&small, "ElectraForMaskedLM"), generator));
        }
        for (name, description, tensors) in parts {
            let renamed = tensors.into_iter().map(|(name, tensor)| NamedTensor { name, ..tensor.clone() });
            write_folder(&output.join(name), &description, &renamed.collect::<Vec<_>>(), vocabulary)?;
        }
        Ok(())
    }
}

impl Fitted {
    fn to(name: &str, trained: &Trained, path: &Path) -> Result<Self, TrainError> {
        match find_any(name)? {
            AnyModel::Classifier(spec) => {
                Ok(Self { model: spec.name, specs: specs_for(spec, &trained.tensors)?, text: None })
            }
            AnyModel::Bert(spec) => {
                check_weights(name, &trained.tensors, &trained.origin)?;
                let config = config_of(name, trained, path)?;
                let sequences = Sequences { batch: 1, length: 1, predictions: 1 };
                let Model { specs, .. } = bert::infer(&config, sequences, &BertOptions::default())?;
                Ok(Self { model: spec.name, specs, text: Some(TextModel::Bert(config)) })
            }
            AnyModel::Electra(spec) => {
                check_weights(name, &trained.tensors, &trained.origin)?;
                let networks =
                    Networks::in_weights(name, trained)?.for_vocabulary(vocabulary_beside(path).as_deref())?;
                let sequences = Sequences { batch: 1, length: 1, predictions: 1 };
                let Model { specs, .. } = electra::evaluate(&networks.config, sequences, &networks.options)?;
                Ok(Self { model: spec.name, specs, text: Some(TextModel::Electra(networks)) })
            }
            AnyModel::ElectraSquad(spec) => {
                let (config, head) = squad::network_of(name, trained, path)?;
                let options = electra::SquadOptions { network: electra::ElectraOptions::default(), head };
                let Model { specs, .. } = electra::squad::predict(&config, 1, CONVERTED_WINDOW, &options)?;
                Ok(Self { model: spec.name, specs, text: Some(TextModel::Questions(config)) })
            }
        }
    }

    fn find(trained: &Trained, path: &Path) -> Result<Self, TrainError> {
        let made = trained.recipe.as_ref().map(|recipe| recipe.model.name.as_str());
        if let Some(name) =
            made.or_else(|| squad::name_of(&trained.tensors)).or_else(|| text::name_of(&trained.tensors, |_| true))
        {
            return Self::to(name, trained, path);
        }
        let (model, specs) = fitting_model(&trained.tensors, &trained.origin)?;
        Ok(Self { model, specs, text: None })
    }
}

fn specs_for(model: &ModelSpec, tensors: &[NamedTensor<'_>]) -> Result<Vec<ParamSpec>, TrainError> {
    let mut options = model.options();
    if let Some(classes) = classes_of(tensors) {
        options.num_classes = classes;
    }
    Ok(Model::infer(model.architecture, &options, 1)?.specs)
}

/// The classifier of the zoo that has exactly these tensors; if there is none, the error of the closest.
fn fitting_model(tensors: &[NamedTensor<'_>], origin: &str) -> Result<(&'static str, Vec<ParamSpec>), TrainError> {
    let mut closest: Option<(usize, TrainError)> = None;
    for model in ZOO {
        let specs = specs_for(model, tensors)?;
        let misfit = match load_strictly(&specs, tensors, origin) {
            Ok(_) => return Ok((model.name, specs)),
            Err(TrainError::Weights { source, .. }) => source,
            Err(error) => return Err(error),
        };
        let problems = problems(&misfit);
        if closest.as_ref().is_none_or(|(fewest, _)| problems < *fewest) {
            let origin = format!("{origin}: fits no model of the zoo; of {}, the closest", model.name);
            closest = Some((problems, TrainError::Weights { origin, source: misfit }));
        }
    }
    Err(closest.expect("the zoo has models").1)
}

fn problems(error: &WeightsError) -> usize {
    error.missing.len() + error.unknown.len() + error.repeated.len() + error.misshapen.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::read_safetensors;
    use bessemer_models::find;
    use bessemer_nn::initialise;
    use tempfile::TempDir;

    fn weights(model: &str) -> Vec<NamedTensor<'static>> {
        let spec = find(model).unwrap();
        let specs = Model::infer(spec.architecture, &spec.options(), 1).unwrap().specs;
        specs.iter().map(|spec| named(spec, &initialise(spec, 3)).unwrap()).collect()
    }

    fn sorted(mut tensors: Vec<NamedTensor<'static>>) -> Vec<NamedTensor<'static>> {
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors
    }

    #[test]
    fn there_and_back_is_the_same() {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        write_safetensors(&path("a"), &weights("resnet32-cifar")).unwrap();
        let to = ConvertOptions { to: Names::DeepLearningExamples, ..ConvertOptions::default() };
        let converted = convert_weights(&path("a"), &path("b"), &to).unwrap();
        assert_eq!(converted.model, "resnet32-cifar");
        let names: Vec<String> = read_safetensors(&path("b")).unwrap().into_iter().map(|t| t.name).collect();
        assert!(names.iter().any(|name| name == "layers.2.4.bn2.running_var"));
        assert!(!names.iter().any(|name| name.starts_with("layer1.")));

        let from = ConvertOptions { from: Some(Names::DeepLearningExamples), ..ConvertOptions::default() };
        convert_weights(&path("b"), &path("c"), &from).unwrap();
        assert_eq!(sorted(read_safetensors(&path("c")).unwrap()), sorted(weights("resnet32-cifar")));

        let wrong = ConvertOptions { from: Some(Names::Torchvision), ..ConvertOptions::default() };
        let error = convert_weights(&path("b"), &path("d"), &wrong).unwrap_err().to_string();
        assert!(error.contains("layers.") && error.contains("torchvision"), "{error}");
        assert!(convert_weights(&path("b"), &path("c"), &from).unwrap_err().to_string().contains("exists already"));
    }

    #[test]
    fn what_fits_no_model_names_the_closest() {
        let folder = TempDir::new().unwrap();
        let mut tensors = weights("resnet20-cifar");
        tensors.retain(|tensor| tensor.name != "layer2.1.bn1.bias");
        let (input, output) = (folder.path().join("a"), folder.path().join("b"));
        write_safetensors(&input, &tensors).unwrap();
        let error = convert_weights(&input, &output, &ConvertOptions::default()).unwrap_err().to_string();
        assert!(error.contains("resnet20-cifar") && error.contains("missing: layer2.1.bn1.bias"), "{error}");
        assert!(!output.exists());
    }
}
