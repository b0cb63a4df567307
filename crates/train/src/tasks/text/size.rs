//! What tensors tell of the network that they are of.

use crate::checkpoint::NamedTensor;
use crate::error::TrainError;
use bessemer_models::bert::BertConfig;
use bessemer_models::weights::canonical_name;
use bessemer_models::{AnyModel, all, find_any};
use std::mem::discriminant;

/// Networks of text by the beginning of their tensors' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Bert,
    Electra,
}

impl Family {
    /// What stands before the names of an encoder; `BertModel` and `ElectraModel` of Hugging Face have nothing there.
    const PREFIXES: [(&'static str, Option<Self>); 3] =
        [("bert.", Some(Self::Bert)), ("electra.", Some(Self::Electra)), ("", None)];
}

/// The size of a network of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// `None` where names do not tell.
    family: Option<Family>,
    pub words: usize,
    /// Width of the embeddings.
    embedding: usize,
    width: usize,
    layers: usize,
}

impl Size {
    /// `None` for tensors that are of no network of text.
    pub(crate) fn of(tensors: &[NamedTensor<'_>]) -> Option<Self> {
        let names: Vec<_> = tensors.iter().map(|tensor| (canonical_name(&tensor.name), &tensor.shape)).collect();
        Family::PREFIXES.into_iter().find_map(|(prefix, family)| {
            let inner = || names.iter().filter_map(|(name, shape)| Some((name.strip_prefix(prefix)?, *shape)));
            let shape = |wanted: &str| inner().find(|(name, _)| *name == wanted).map(|(_, shape)| shape.as_slice());
            let &[words, embedding] = shape("embeddings.word_embeddings.weight")? else { return None };
            let &[width, _] = shape("encoder.layer.0.attention.self.query.weight")? else { return None };
            let layer = |name: &str| name.strip_prefix("encoder.layer.")?.split('.').next()?.parse::<usize>().ok();
            let layers = inner().filter_map(|(name, _)| layer(name)).max()? + 1;
            Some(Self { family, words, embedding, width, layers })
        })
    }

    /// Whether it is that of a model of the zoo, whose words may be any number.
    fn fits(self, model: AnyModel) -> bool {
        let (family, embedding, encoder): (Family, usize, BertConfig) = match model {
            AnyModel::Classifier(_) => return false,
            AnyModel::Bert(spec) => {
                let config = (spec.config)();
                (Family::Bert, config.hidden_size, config)
            }
            AnyModel::Electra(spec) => {
                let config = (spec.config)();
                (Family::Electra, config.embedding_size, config.encoder)
            }
            AnyModel::ElectraSquad(spec) => {
                let config = (spec.config)();
                (Family::Electra, config.embedding_size, config.encoder)
            }
        };
        self.family.is_none_or(|own| own == family)
            && (self.embedding, self.width, self.layers) == (embedding, encoder.hidden_size, encoder.num_hidden_layers)
    }

    /// In words: `an ELECTRA of 4 layers, 256 wide, embeddings of 128`.
    fn describe(self) -> String {
        let Self { family, embedding, width, layers, .. } = self;
        let family = match family {
            Some(Family::Bert) => "a BERT",
            Some(Family::Electra) => "an ELECTRA",
            None => "an encoder",
        };
        let narrow = if embedding == width { String::new() } else { format!(", embeddings of {embedding}") };
        format!("{family} of {layers} layers, {width} wide{narrow}")
    }
}

/// The first model of the zoo that `is_meant` and has tensors of these sizes.
pub(crate) fn name_of(tensors: &[NamedTensor<'_>], is_meant: impl Fn(AnyModel) -> bool) -> Option<&'static str> {
    let size = Size::of(tensors)?;
    all().find(|&model| is_meant(model) && size.fits(model)).map(AnyModel::name)
}

/// The size of weights, which must be that of model `name`; `None` for tensors that are of no network of text.
///
/// # Errors
/// Tensors of another number of layers, of another width or of another family than the model's.
pub(crate) fn check_size(name: &str, tensors: &[NamedTensor<'_>], origin: &str) -> Result<Option<Size>, TrainError> {
    let (Some(size), model) = (Size::of(tensors), find_any(name)?) else { return Ok(None) };
    if size.fits(model) {
        return Ok(Some(size));
    }
    let is_alike = |other: AnyModel| discriminant(&other) == discriminant(&model);
    let any = name_of(tensors, is_alike).or_else(|| name_of(tensors, |_| true));
    let fitting = any.map_or_else(String::new, |name| format!(": {name}"));
    let allowed = format!("{origin} holds {}{fitting}", size.describe());
    Err(TrainError::setting("the model", name, allowed))
}
