//! What the names and shapes of tensors reveal about their encoder.

use crate::error::TrainError;
use crate::tasks::family::{EmbeddingTable, ModelInfo, Recognised, SampleInfo};
use crate::tasks::registry;
use bessemer_models::WeightNames;
use bessemer_models::bert::BertConfig;
use bessemer_weights::NamedTensor;

/// Tables of embeddings are padded to multiples of at most this many tokens, unless a recipe says more.
const MOST_PADDING: u64 = 128;

/// The encoders of a family of models of text.
pub(crate) struct Encoders {
    /// What stands before the names of an encoder's tensors; files of the encoder alone have nothing there.
    pub prefix: &'static str,
    /// With an article, for messages.
    pub noun: &'static str,
    pub names: &'static WeightNames,
    /// How names of the other tensors of a model begin.
    pub heads: &'static [&'static str],
    /// All models with their shapes.
    pub models: fn() -> Vec<(ModelInfo, EncoderShape)>,
}

/// Sizes of an encoder but for its vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncoderShape {
    /// Width of the embeddings.
    embedding: usize,
    width: usize,
    layers: usize,
}

impl EncoderShape {
    pub(crate) fn of(embedding: usize, encoder: &BertConfig) -> Self {
        Self { embedding, width: encoder.hidden_size, layers: encoder.num_hidden_layers }
    }
}

/// The size of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncoderSize {
    pub tokens: usize,
    shape: EncoderShape,
    /// Whether nothing identifies whose encoder it is.
    is_bare: bool,
}

impl Encoders {
    /// All models.
    pub(crate) fn list(&self) -> Vec<ModelInfo> {
        (self.models)().into_iter().map(|(info, _)| info).collect()
    }

    /// `None` for tensors of which none is an encoder's of this family.
    pub(crate) fn size(&self, tensors: &[NamedTensor<'_>]) -> Option<EncoderSize> {
        let names: Vec<_> = tensors.iter().map(|tensor| (self.names.canonical(&tensor.name), &tensor.shape)).collect();
        [self.prefix, ""].into_iter().find_map(|prefix| {
            let inner = || names.iter().filter_map(|(name, shape)| Some((name.strip_prefix(prefix)?, *shape)));
            let shape = |wanted: &str| inner().find(|(name, _)| *name == wanted).map(|(_, shape)| shape.as_slice());
            let &[tokens, embedding] = shape("embeddings.word_embeddings.weight")? else { return None };
            let &[width, _] = shape("encoder.layer.0.attention.self.query.weight")? else { return None };
            let layer = |name: &str| name.strip_prefix("encoder.layer.")?.split('.').next()?.parse::<usize>().ok();
            let layers = inner().filter_map(|(name, _)| layer(name)).max()? + 1;
            Some(EncoderSize { tokens, shape: EncoderShape { embedding, width, layers }, is_bare: prefix.is_empty() })
        })
    }

    /// As [`Family::recognise`](crate::tasks::family::Family::recognise).
    pub(crate) fn recognise(&self, tensors: &[NamedTensor<'_>]) -> Option<Recognised> {
        let EncoderSize { shape, is_bare, .. } = self.size(tensors)?;
        let parts: Vec<&str> = match is_bare {
            true => self.heads.iter().copied().chain(["embeddings.", "encoder."]).collect(),
            false => self.heads.iter().copied().chain([self.prefix]).collect(),
        };
        let is_known = |tensor: &&NamedTensor<'_>| {
            let name = self.names.canonical(&tensor.name);
            parts.iter().any(|part| name.starts_with(part))
        };
        let models =
            (self.models)().into_iter().filter(|(_, known)| *known == shape).map(|(info, _)| info.name).collect();
        Some(Recognised { what: self.describe(shape, is_bare), models, known: tensors.iter().filter(is_known).count() })
    }

    /// # Errors
    /// Tensors of another size than those of a model.
    pub(crate) fn check(&self, model: &str, tensors: &[NamedTensor<'_>], origin: &str) -> Result<(), TrainError> {
        registry::check_weights(registry::find(model)?, tensors, origin)
    }

    /// The size of weights, which must be that of a model.
    ///
    /// # Errors
    /// Tensors of another size, or of none of the family's encoders.
    pub(crate) fn require_size(
        &self,
        model: &str,
        tensors: &[NamedTensor<'_>],
        origin: &str,
    ) -> Result<EncoderSize, TrainError> {
        self.check(model, tensors, origin)?;
        let missing = || TrainError::setting("the model", model, format!("{origin} holds no {}", self.kind()));
        self.size(tensors).ok_or_else(missing)
    }

    /// The table of embeddings among tensors, of a recipe that fills it up to a multiple if it says one.
    pub(crate) fn embeddings(&self, tensors: &[NamedTensor<'_>], multiple: Option<u64>) -> Option<EmbeddingTable> {
        let multiple = multiple.unwrap_or(MOST_PADDING).max(MOST_PADDING);
        Some(EmbeddingTable { tokens: self.size(tensors)?.tokens as u64, multiple })
    }

    fn kind(&self) -> &'static str {
        self.noun.split_once(' ').map_or(self.noun, |(_, noun)| noun)
    }

    /// In words: `an ELECTRA of 4 layers, 256 wide, embeddings of 128`.
    fn describe(&self, shape: EncoderShape, is_bare: bool) -> String {
        let EncoderShape { embedding, width, layers } = shape;
        let noun = if is_bare { "an encoder" } else { self.noun };
        let narrow = if embedding == width { String::new() } else { format!(", embeddings of {embedding}") };
        format!("{noun} of {layers} layers, {width} wide{narrow}")
    }
}

/// # Errors
/// Sequences that are longer than the table of positions.
pub(crate) fn check_length(config: &BertConfig, length: usize) -> Result<(), TrainError> {
    let most = config.max_position_embeddings;
    if length <= most {
        return Ok(());
    }
    Err(TrainError::setting("the length of sequences", length, format!("the model has {most} positions")))
}

impl SampleInfo {
    /// A sample of this many tokens.
    pub(crate) fn of_tokens(encoder: &BertConfig, length: usize) -> Self {
        let text = format!("{length} tokens, {} at most", encoder.max_position_embeddings);
        Self { shape: vec![length], text, classes: encoder.vocab_size }
    }
}
