//! Weight files under the names of other suites.

use crate::checkpoint::{is_tensorflow, load_weights};
use crate::error::TrainError;
use crate::loaded_weights::{LoadedWeights, Training, holds_averages};
use crate::provenance::Provenance;
use crate::state::{load_strictly, named};
use crate::tasks::family::{Fitted, Network, NetworkForm};
use crate::tasks::huggingface::VocabularyPart;
use crate::tasks::registry::{self, ZooModel};
use crate::tasks::text::vocabulary_beside;
use bessemer_data::text::Vocabulary;
use bessemer_data::{Unfinished, hidden_beside};
use bessemer_ir::reference::Tensor;
use bessemer_models::weights::without_module;
use bessemer_models::{Model, WeightNames};
use bessemer_nn::ParamSpec;
use bessemer_onnx::{BATCHES, Encoded, Export};
use bessemer_weights::{NamedTensor, WeightOptions, publish_file, write_safetensors, write_safetensors_with_note};
use std::path::Path;
use std::str::FromStr;
use std::{fmt, fs};

/// How tensors are called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// `layer1.0.conv1.weight`, `blocks.0.0.conv_dw.weight`: timm's and this program's own.
    #[default]
    Timm,
    /// `layer1.0.conv1.weight`, `features.1.0.block.0.0.weight`
    Torchvision,
    /// `layers.0.0.conv1.weight`: NVIDIA DeepLearningExamples (PyTorch).
    DeepLearningExamples,
    /// `bert.encoder.layer.0.attention.self.query.weight`, in a folder with `config.json` and `vocab.txt`.
    HuggingFace,
    /// `resnet50/btlnck_block_0_0/bottleneck_1/conv2d/kernel`: a checkpoint of TensorFlow, which is read and not written.
    TensorFlow,
    /// No naming but an ONNX file with the network of inference.
    Onnx,
}

impl FromStr for Names {
    type Err = TrainError;

    fn from_str(name: &str) -> Result<Self, TrainError> {
        match name {
            "timm" | "bessemer" => Ok(Self::Timm),
            "torchvision" => Ok(Self::Torchvision),
            "dle" => Ok(Self::DeepLearningExamples),
            "huggingface" => Ok(Self::HuggingFace),
            "tensorflow" => Ok(Self::TensorFlow),
            "onnx" => Ok(Self::Onnx),
            other => {
                let allowed = "expected torchvision, timm, dle, huggingface, tensorflow, onnx or bessemer";
                Err(TrainError::setting("the naming", other, allowed))
            }
        }
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timm => "timm",
            Self::Torchvision => "torchvision",
            Self::DeepLearningExamples => "dle",
            Self::HuggingFace => "huggingface",
            Self::TensorFlow => "tensorflow",
            Self::Onnx => "onnx",
        })
    }
}

impl Names {
    /// The canonical name of a tensor in this naming.
    fn of(self, names: &WeightNames, canonical: &str) -> String {
        self.suite(names).map_or_else(|| canonical.to_owned(), |of| of(canonical))
    }

    /// How torchvision, or NVIDIA's suite, names the tensors of models, if it has such models.
    fn suite(self, names: &WeightNames) -> Option<fn(&str) -> String> {
        match self {
            Self::Torchvision => names.torchvision,
            Self::DeepLearningExamples => names.deep_learning_examples,
            _ => None,
        }
    }

    /// Whether a file in this naming may call a tensor so.
    fn allows(self, names: &WeightNames, name: &str) -> bool {
        let name = without_module(name);
        name == self.of(names, &names.canonical(name))
    }
}

/// What was converted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Converted {
    /// The model that the weights fit.
    pub model: &'static str,
    /// Number of tensors that were written.
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
    /// Sizes and outputs of the network in an ONNX file.
    pub form: NetworkForm,
}

/// Writes the weights of a `.safetensors` or PyTorch file, checkpoint, run folder (the averages if the run kept them, which its
/// evaluations took), folder of Hugging Face or checkpoint of TensorFlow to a `.safetensors` file, or a
/// folder as Hugging Face has it, as F32 under other names, or with the network of inference to an ONNX file. Counts of batches (`num_batches_tracked`) are left out.
/// A `.safetensors` file says how its weights were trained, where that is known.
///
/// # Errors
/// Names of another suite than `from`, or a naming that is not read or not written; weights that do not fit the model, or no model of the zoo; an output that exists; a network without an ONNX form.
pub fn convert_weights(input: &Path, output: &Path, options: &ConvertOptions<'_>) -> Result<Converted, TrainError> {
    if output.exists() {
        let allowed = "it exists already, choose another name";
        return Err(TrainError::setting("the output", output.display(), allowed));
    }
    if options.to != Names::HuggingFace
        && let Some(folder) = output.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir())
    {
        let allowed = format!("there is no folder {}", folder.display());
        return Err(TrainError::setting("the output", output.display(), allowed));
    }
    if options.from == Some(Names::Onnx) {
        return Err(TrainError::setting("the naming of the input", Names::Onnx, "ONNX files are written, not read"));
    }
    if options.to == Names::TensorFlow {
        let allowed = "checkpoints of TensorFlow are read, not written";
        return Err(TrainError::setting("the naming", options.to, allowed));
    }
    check_ending(output, options.to)?;
    let training = Training::of(input)?;
    let is_checkpoint_of_tensorflow = training.recipe.is_none() && is_tensorflow(input)?;
    let Training { recipe, is_tensorflow, vocabulary } = training;
    let ema = holds_averages(input, recipe.as_ref());
    let tensors = load_weights(input, WeightOptions { to_f32: true, ema, ..WeightOptions::default() })?;
    let origin = input.display().to_string();
    let model = match options.model.or(recipe.as_ref().map(|recipe| recipe.model.name.as_str())) {
        Some(name) => registry::find(name)?,
        None => registry::recognise(&tensors, &origin)?,
    };
    let trained = LoadedWeights { family: model.family(), tensors, origin, recipe, is_tensorflow, vocabulary };
    if let Some(from) = options.from
        && (from == Names::TensorFlow) != is_checkpoint_of_tensorflow
    {
        let is = if from == Names::TensorFlow { "is no" } else { "is a" };
        let allowed = format!("{} {is} checkpoint of TensorFlow", trained.origin);
        return Err(TrainError::setting("the naming of the input", from, allowed));
    }
    if options.to != Names::Onnx && options.form != NetworkForm::default() {
        let allowed = "image size, sequence length and outputs are those of an ONNX file";
        return Err(TrainError::setting("the naming", options.to, allowed));
    }
    let Fitted { model: Model { specs, names, .. }, folder } = model.family().fitted(model.name(), &trained, input)?;
    if let Some(from) = options.from
        && let Some(tensor) = trained.tensors.iter().find(|tensor| !from.allows(names, &tensor.name))
    {
        let allowed = format!("{} was said to be named as in {from}", trained.origin);
        return Err(TrainError::setting("a tensor's name", &tensor.name, allowed));
    }
    let loaded = load_strictly(&specs, names, &trained.tensors, &trained.origin)?;
    let converted: Vec<NamedTensor<'static>> = loaded
        .iter()
        .map(|(spec, data)| NamedTensor { name: options.to.of(names, &spec.name), ..named(spec, data) })
        .collect();
    match (options.to, &folder) {
        (Names::HuggingFace, Some(write)) => {
            let vocabulary = vocabulary_part(input, &trained)?;
            whole_folder(output, |folder| write(folder, &converted, &vocabulary))?;
        }
        (Names::HuggingFace, None) => {
            let allowed = format!("that is for models of text; {} holds {}", trained.origin, model.name());
            return Err(TrainError::setting("the naming", options.to, allowed));
        }
        (Names::Torchvision | Names::DeepLearningExamples, _) if options.to.suite(names).is_none() => {
            let allowed = format!("it has no model like {}, which {} holds", model.name(), trained.origin);
            return Err(TrainError::setting("the naming", options.to, allowed));
        }
        (Names::Onnx, _) => {
            let tensors = write_network(model, input, output, &trained, &options.form)?;
            return Ok(Converted { model: model.name(), tensors });
        }
        _ => match Provenance::of(model, &trained, input)? {
            Some(said) => write_safetensors_with_note(output, &converted, &said.to_note())?,
            None => write_safetensors(output, &converted)?,
        },
    }
    Ok(Converted { model: model.name(), tensors: converted.len() })
}

/// # Errors
/// A file that would be called after another format than its own.
fn check_ending(output: &Path, to: Names) -> Result<(), TrainError> {
    let wanted = match to {
        Names::HuggingFace => return Ok(()),
        Names::Onnx => "onnx",
        _ => "safetensors",
    };
    let ending = output.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    match ending {
        Some(ending) if ending != wanted => {
            let hint = if ending == "onnx" { ", and --to onnx writes ONNX files" } else { "" };
            let allowed = format!("what is written is .{wanted}{hint}");
            Err(TrainError::setting("the output", output.display(), allowed))
        }
        _ => Ok(()),
    }
}

/// Writes an ONNX file; returns the number of tensors in it.
fn write_network(
    model: ZooModel,
    input: &Path,
    output: &Path,
    trained: &LoadedWeights,
    form: &NetworkForm,
) -> Result<usize, TrainError> {
    let network = |batch| model.family().network(model.name(), trained, input, batch, form);
    let [first, second] = BATCHES.map(network);
    let (Network { model: Model { graph, specs, names }, has, preprocessing }, second) = (first?, second?);
    let tensors: Vec<NamedTensor<'_>> = trained.tensors.iter().filter(|tensor| has(&tensor.name)).cloned().collect();
    let loaded = load_strictly(&specs, names, &tensors, &trained.origin)?;
    let tensor = |(spec, data): (&ParamSpec, Vec<f32>)| {
        (spec.name.clone(), Tensor::new(spec.ty.clone(), data.into_iter().map(f64::from).collect()))
    };
    let parameters = loaded.into_iter().map(tensor).collect();
    let graphs = [graph, second.model.graph];
    let export = Export { model: model.name(), graphs, parameters, metadata: preprocessing };
    let Encoded { bytes, tensors } = export.encode()?;
    publish_file(output, |sink| sink.write_all(&bytes))?;
    Ok(tensors)
}

/// The vocabulary beside weights, if there is one, and its identity.
///
/// # Errors
/// A vocabulary that cannot be read or is not that of the weights.
fn vocabulary_part(input: &Path, trained: &LoadedWeights) -> Result<VocabularyPart, TrainError> {
    let Some(file) = vocabulary_beside(input) else {
        return Ok(VocabularyPart { identity: trained.vocabulary.clone(), file: None });
    };
    let identity = Vocabulary::open(&file)?.identity();
    trained.weights().check_vocabulary(&identity, &file.display().to_string())?;
    Ok(VocabularyPart { identity: Some(identity), file: Some(file) })
}

/// Makes a new folder of what `write` puts into another one beside it, so that there is all of it or nothing.
fn whole_folder(folder: &Path, write: impl FnOnce(&Path) -> Result<(), TrainError>) -> Result<(), TrainError> {
    let failed = || TrainError::io(folder, "make the folder");
    let beside = hidden_beside(folder);
    if beside.exists() {
        // What a killed program left.
        fs::remove_dir_all(&beside).map_err(failed())?;
    }
    let unfinished = Unfinished::begin(&beside);
    fs::create_dir_all(&beside).map_err(failed())?;
    write(&beside)?;
    unfinished.place(folder).map_err(failed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::DetectorOutputs;
    use bessemer_models::bert::{self, BertConfig, BertOptions, Sequences};
    use bessemer_models::electra::{self, PretrainingOptions};
    use bessemer_models::find;
    use bessemer_nn::initialise;
    use bessemer_weights::{read_safetensors, write_tensorflow_checkpoint};
    use tempfile::TempDir;

    fn weights(model: &str) -> Vec<NamedTensor<'static>> {
        let spec = find(model).unwrap();
        let specs = Model::infer(spec.architecture, &spec.options(), 1).unwrap().specs;
        specs.iter().map(|spec| named(spec, &initialise(spec, 3))).collect()
    }

    #[test]
    fn efficientnets_have_two_namings() {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        write_safetensors(&path("a"), &weights("efficientnet-tiny")).unwrap();
        let to = ConvertOptions { to: Names::Torchvision, ..ConvertOptions::default() };
        assert_eq!(convert_weights(&path("a"), &path("b"), &to).unwrap().model, "efficientnet-tiny");
        let names: Vec<String> = read_safetensors(&path("b")).unwrap().into_iter().map(|t| t.name).collect();
        assert!(names.iter().any(|name| name == "features.6.1.block.3.1.running_var"), "{names:?}");
        let is_torchvision = |name: &String| name.starts_with("features.") || name.starts_with("classifier.1.");
        assert!(names.iter().all(is_torchvision), "{names:?}");

        let from = |names| ConvertOptions { from: Some(names), ..ConvertOptions::default() };
        convert_weights(&path("b"), &path("c"), &from(Names::Torchvision)).unwrap();
        assert_eq!(sorted(read_safetensors(&path("c")).unwrap()), sorted(weights("efficientnet-tiny")));
        let error = convert_weights(&path("b"), &path("d"), &from(Names::Timm)).unwrap_err().to_string();
        assert!(error.contains("classifier.1.bias") && error.contains("timm"), "{error}");
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

    /// A tensor as a layer of TensorFlow has it, `axes` of it in that order.
    fn permuted(tensor: &NamedTensor<'_>, axes: &[usize]) -> NamedTensor<'static> {
        let values = tensor.to_f32().unwrap();
        let shape: Vec<usize> = axes.iter().map(|&axis| tensor.shape[axis]).collect();
        let stride = |axis: usize| tensor.shape[axis + 1..].iter().product::<usize>();
        let strides: Vec<usize> = axes.iter().map(|&axis| stride(axis)).collect();
        let place = |mut index: usize| {
            let digits = shape.iter().zip(&strides).rev().map(|(size, stride)| {
                let digit = index % size;
                index /= size;
                digit * stride
            });
            digits.sum::<usize>()
        };
        let ordered: Vec<f32> = (0..values.len()).map(|index| values[place(index)]).collect();
        let data = NamedTensor::from_f32("", shape.clone(), &ordered).unwrap().data.into_owned();
        NamedTensor { name: tensor.name.clone(), dtype: tensor.dtype, shape, data: data.into() }
    }

    /// Converts weights that lie in a checkpoint of TensorFlow under `name` of each name, and compares them with those in it.
    fn check_tensorflow(model: &str, tensors: Vec<NamedTensor<'static>>, name: impl Fn(&str) -> String) {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        let in_tensorflow = tensors.iter().map(|tensor| {
            let name = name(&tensor.name);
            let axes: &[usize] = match (name.rsplit('/').next(), tensor.shape.len()) {
                (Some("kernel"), 2) => &[1, 0],
                (Some("kernel"), 4) => &[2, 3, 1, 0],
                (Some("depthwise_kernel"), _) => &[2, 3, 0, 1],
                _ => &[0, 1][..tensor.shape.len()],
            };
            NamedTensor { name, ..permuted(tensor, axes) }
        });
        write_tensorflow_checkpoint(&path("model.ckpt"), &in_tensorflow.collect::<Vec<_>>());
        let from = |names| ConvertOptions { from: Some(names), model: Some(model), ..ConvertOptions::default() };
        let converted = convert_weights(&path("model.ckpt"), &path("a"), &from(Names::TensorFlow)).unwrap();
        assert_eq!((converted.model, converted.tensors), (model, tensors.len()));
        assert_eq!(sorted(read_safetensors(&path("a")).unwrap()), sorted(tensors));

        let refused = |input: &str, options: &ConvertOptions<'_>| {
            convert_weights(&path(input), &path("b"), options).unwrap_err().to_string()
        };
        let error = refused("model.ckpt", &from(Names::Timm));
        assert!(error.contains("is timm; ") && error.contains("is a checkpoint of TensorFlow"), "{error}");
        let error = refused("a", &from(Names::TensorFlow));
        assert!(error.contains("is tensorflow; ") && error.contains("is no checkpoint of TensorFlow"), "{error}");
        let error = refused("a", &ConvertOptions { to: Names::TensorFlow, ..ConvertOptions::default() });
        assert!(error.contains("are read, not written"), "{error}");
    }

    #[test]
    fn checkpoints_of_tensorflow_give_efficientnets() {
        let layer = |module: &str| -> String {
            match module {
                "conv_stem" => "stem_conv2d".to_owned(),
                "bn1" => "stem_bn".to_owned(),
                "conv_head" => "top_conv2d".to_owned(),
                "bn2" => "top_bn".to_owned(),
                "classifier" => "logits".to_owned(),
                block => {
                    let parts: Vec<&str> = block.splitn(4, '.').collect();
                    let is_first = parts[1] == "0";
                    let part = match parts[3] {
                        "conv_pw" if !is_first => "expand_conv2d",
                        "bn1" if !is_first => "expand_bn",
                        "conv_dw" => "depthwise_conv2d",
                        "bn1" => "depthwise_bn",
                        "bn2" if !is_first => "depthwise_bn",
                        "se.conv_reduce" => "se_reduce_conv2d",
                        "se.conv_expand" => "se_expand_conv2d",
                        "conv_pw" | "conv_pwl" => "project_conv2d",
                        _ => "project_bn",
                    };
                    format!("stack_{}/block_{}/{part}", parts[1], parts[2])
                }
            }
        };
        check_tensorflow("efficientnet-tiny", weights("efficientnet-tiny"), |name| {
            let (module, tensor) = name.rsplit_once('.').unwrap();
            let layer = layer(module);
            let variable = match (tensor, layer.ends_with("_bn")) {
                ("weight", true) => "gamma",
                ("bias", true) => "beta",
                ("running_mean", _) => "moving_mean",
                ("running_var", _) => "moving_variance",
                ("weight", _) if layer.ends_with("depthwise_conv2d") => "depthwise_kernel",
                ("weight", _) => "kernel",
                _ => tensor,
            };
            format!("efficientnet/{layer}/{variable}")
        });
    }

    /// A name of Google's.
    fn of_google(name: &str) -> String {
        let is_norm = name.contains("LayerNorm");
        let name = name.replace(".layer.", ".layer_").replace('.', "/");
        let name = name.replace("cls/predictions/bias", "cls/predictions/output_bias");
        let name = name.replace("seq_relationship/weight", "seq_relationship/output_weights");
        let name = name.replace("seq_relationship/bias", "seq_relationship/output_bias");
        let name = name.replace("generator_lm_head/bias", "generator_predictions/output_bias");
        let name = name.replace("discriminator_predictions/dense_prediction", "discriminator_predictions/dense_1");
        match name.strip_suffix("/weight") {
            Some(stem) if is_norm => format!("{stem}/gamma"),
            Some(stem) if stem.ends_with("_embeddings") => stem.to_owned(),
            Some(stem) => format!("{stem}/kernel"),
            None if is_norm => name.replace("/bias", "/beta"),
            None => name,
        }
    }

    #[test]
    fn checkpoints_of_tensorflow_give_models_of_text() {
        let sequences = Sequences { batch: 1, length: 1, predictions: 1 };
        let tensors = |specs: &[ParamSpec]| {
            let specs = specs.iter().filter(|spec| spec.kind.is_model());
            specs.map(|spec| named(spec, &initialise(spec, 3))).collect::<Vec<_>>()
        };
        let spec = bert::find("bert-tiny").unwrap();
        let config = BertConfig { vocab_size: 120, ..(spec.config)() };
        let model = bert::infer(&config, sequences, &BertOptions::default()).unwrap();
        check_tensorflow("bert-tiny", tensors(&model.specs), of_google);

        let spec = electra::find("electra-tiny").unwrap();
        let mut config = (spec.config)();
        config.encoder.vocab_size = 120;
        let options = PretrainingOptions::new(spec.generator_fraction);
        let model = electra::evaluate(&config, sequences, &options).unwrap();
        check_tensorflow("electra-tiny", tensors(&model.specs), of_google);
    }

    #[test]
    fn files_for_timm_have_its_names_and_the_same_bits() {
        let folder = TempDir::new().unwrap();
        let cases = [
            ("resnet18", Names::DeepLearningExamples, ["layer1.0.conv1.weight", "layer4.1.bn2.running_var", "fc.bias"]),
            (
                "efficientnet-tiny",
                Names::Torchvision,
                ["conv_stem.weight", "blocks.1.0.se.conv_reduce.bias", "classifier.weight"],
            ),
        ];
        for (model, other, names) in cases {
            let path = |name: &str| folder.path().join(format!("{model}-{name}"));
            let convert = |from: &str, to: &str, naming| {
                let options = ConvertOptions { to: naming, model: Some(model), ..ConvertOptions::default() };
                convert_weights(&path(from), &path(to), &options).unwrap();
            };
            write_safetensors(&path("own"), &weights(model)).unwrap();
            convert("own", "other", other);
            convert("other", "timm", "timm".parse().unwrap());
            convert("timm", "back", "bessemer".parse().unwrap());
            let timm = read_safetensors(&path("timm")).unwrap();
            let has = |name: &&str| timm.iter().any(|tensor| tensor.name == **name);
            assert!(names.iter().all(has), "{:?}", timm.iter().map(|t| &t.name).collect::<Vec<_>>());
            assert_eq!(sorted(timm), sorted(weights(model)));
            assert_eq!(sorted(read_safetensors(&path("back")).unwrap()), sorted(weights(model)));
            assert_ne!(fs::read(path("other")).unwrap(), fs::read(path("timm")).unwrap());
        }
    }

    #[test]
    fn a_network_for_detections_ends_as_it_is_asked_to() {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        let spec = bessemer_models::efficientdet::find("efficientdet-tiny").unwrap();
        let model = bessemer_models::efficientdet::raw_outputs(&spec.options(), 1, bessemer_nn::Mode::Infer).unwrap();
        let tensors: Vec<_> = model.specs.iter().map(|spec| named(spec, &initialise(spec, 3))).collect();
        write_safetensors(&path("weights"), &tensors).unwrap();
        let form = |outputs| NetworkForm { outputs, ..NetworkForm::default() };
        let convert = |to: &str, names, outputs| {
            let options = ConvertOptions {
                to: names,
                model: Some("efficientdet-tiny"),
                form: form(outputs),
                ..ConvertOptions::default()
            };
            convert_weights(&path("weights"), &path(to), &options)
        };
        convert("detections.onnx", Names::Onnx, None).unwrap();
        convert("network.onnx", Names::Onnx, Some(DetectorOutputs::Network)).unwrap();
        let has = |file: &str, op: &[u8]| {
            let bytes = fs::read(path(file)).unwrap();
            bytes.windows(op.len()).any(|window| window == op)
        };
        assert!(has("detections.onnx", b"NonMaxSuppression") && !has("network.onnx", b"NonMaxSuppression"));
        let error = convert("no", Names::Timm, Some(DetectorOutputs::Network)).unwrap_err().to_string();
        assert!(error.contains("outputs are those of an ONNX file"), "{error}");
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
