//! Folders as Hugging Face has them: `config.json`, `model.safetensors` and `vocab.txt`.

use crate::error::TrainError;
use crate::tasks::registry;
use bessemer_data::text::{VOCABULARY_FILE, VocabularyIdentity};
use bessemer_models::bert::BertConfig;
use bessemer_nn::Activation;
use bessemer_weights::{CONFIG_FILE, MODEL_FILE, NamedTensor, write_safetensors};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A network for a folder: the content of `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Description(Value);

impl Description {
    /// A network around an encoder. `class` is its name there, such as `BertForPreTraining`, `model_type` that of its kind.
    pub(crate) fn new(encoder: &BertConfig, model_type: &str, class: &str) -> Self {
        let mut description = common(encoder);
        description["architectures"] = json!([class]);
        description["model_type"] = json!(model_type);
        Self(description)
    }

    /// The same with one more field.
    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0[field] = value.into();
        self
    }
}

/// The field of `config.json` with the identity of the vocabulary. Other programs pass over it.
const VOCABULARY: &str = "vocabulary";

/// A vocabulary for a folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VocabularyPart {
    /// Checksum and size of the vocabulary; `None` if it is not known.
    pub identity: Option<VocabularyIdentity>,
    /// File of the vocabulary; `None` if there is none to copy.
    pub file: Option<PathBuf>,
}

/// Writes weights under the names of files, and what they are of, to a new folder.
///
/// # Errors
/// A folder that exists or cannot be written; a vocabulary that cannot be read.
pub(crate) fn write_folder(
    folder: &Path,
    Description(config): &Description,
    tensors: &[NamedTensor<'_>],
    vocabulary: &VocabularyPart,
) -> Result<(), TrainError> {
    fs::create_dir_all(folder).map_err(TrainError::io(folder, "make the folder"))?;
    let path = folder.join(CONFIG_FILE);
    let mut config = config.clone();
    if let Some(identity) = &vocabulary.identity {
        config[VOCABULARY] = json!(identity);
    }
    let text = serde_json::to_string_pretty(&config).expect("keys are names and numbers are finite") + "\n";
    fs::write(&path, text).map_err(TrainError::io(&path, "write the configuration"))?;
    if let Some(vocabulary) = &vocabulary.file {
        let path = folder.join(VOCABULARY_FILE);
        fs::copy(vocabulary, &path).map_err(TrainError::io(&path, "copy the vocabulary"))?;
    }
    Ok(write_safetensors(&folder.join(MODEL_FILE), tensors)?)
}

/// What all configurations have.
fn common(config: &BertConfig) -> Value {
    json!({
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "hidden_act": hidden_act(config.hidden_act),
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
        "max_position_embeddings": config.max_position_embeddings,
        "type_vocab_size": config.type_vocab_size,
        "initializer_range": config.initializer_range,
        "layer_norm_eps": config.layer_norm_eps,
        "pad_token_id": 0,
        "tie_word_embeddings": true,
        "torch_dtype": "float32",
    })
}

fn hidden_act(activation: Activation) -> &'static str {
    match activation {
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_new",
    }
}

/// The vocabulary that the configuration of a folder names, or that of the first of two networks in it.
///
/// # Errors
/// A configuration that cannot be read.
pub(crate) fn vocabulary_in_config(folder: &Path) -> Result<Option<VocabularyIdentity>, TrainError> {
    let parts = std::iter::once("").chain(registry::joint_weights().map(|joint| joint.folders[0]));
    let Some(path) = parts.map(|part| folder.join(part).join(CONFIG_FILE)).find(|path| path.is_file()) else {
        return Ok(None);
    };
    let text = fs::read_to_string(&path).map_err(TrainError::io(&path, "read the configuration"))?;
    let config: Value = serde_json::from_str(&text).unwrap_or_default();
    Ok(serde_json::from_value(config[VOCABULARY].clone()).ok())
}

/// The activation that a folder's configuration names.
///
/// # Errors
/// A configuration that cannot be read, or of another kind of network.
pub(crate) fn activation_in(folder: &Path) -> Result<Option<Activation>, TrainError> {
    let path = folder.join(CONFIG_FILE);
    if !path.is_file() {
        return Ok(None);
    }
    let text = fs::read_to_string(&path).map_err(TrainError::io(&path, "read the configuration"))?;
    let config: Value = serde_json::from_str(&text).unwrap_or_default();
    let allowed = |what: &str| format!("{} must name {what}", path.display());
    match config["hidden_act"].as_str() {
        Some("gelu") => Ok(Some(Activation::Gelu)),
        Some("gelu_new" | "gelu_pytorch_tanh") => Ok(Some(Activation::GeluTanh)),
        other => Err(TrainError::setting("hidden_act", other.unwrap_or("not given"), allowed("gelu or gelu_new"))),
    }
}
