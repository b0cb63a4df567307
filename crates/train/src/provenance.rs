//! What a file of weights says of how they were trained, so that it is taken as the run was that it comes from.

use crate::checkpoint::{CheckpointError, note_of_safetensors};
use crate::error::TrainError;
use crate::loaded_weights::{LoadedWeights, text_of_run};
use crate::recipe::Recipe;
use crate::tasks::registry::ZooModel;
use bessemer_data::text::VocabularyIdentity;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// A note in the metadata of a safetensors file, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Provenance {
    /// The recipe as TOML, without the places of its data and of the weights that it began with.
    recipe: String,
    /// The vocabulary that the weights were trained with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<VocabularyIdentity>,
    /// Texts from the folder of the run, by the names of their files there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
}

impl Provenance {
    /// That of the weights of a path; `None` for a file of another program, which its names alone tell about.
    ///
    /// # Errors
    /// A file of the run that cannot be read.
    pub(crate) fn of(model: ZooModel, trained: &LoadedWeights, weights: &Path) -> Result<Option<Self>, TrainError> {
        let family = model.family();
        let recipe = match &trained.recipe {
            None if trained.is_tensorflow => family.recipe_of_tensorflow(model.name(), &trained.tensors)?,
            recipe => recipe.clone(),
        };
        let Some(recipe) = recipe else { return Ok(None) };
        let mut files = BTreeMap::new();
        for name in family.class_files() {
            files.extend(text_of_run(weights, name)?.map(|found| ((*name).to_owned(), found.text)));
        }
        Ok(Some(Self { recipe: recipe.to_portable_toml(), vocabulary: trained.vocabulary.clone(), files }))
    }

    /// What a file says; `None` for one that says nothing.
    ///
    /// # Errors
    /// A file that cannot be read; a note that is damaged.
    pub(crate) fn in_file(path: &Path) -> Result<Option<Self>, TrainError> {
        let Some(note) = note_of_safetensors(path)? else { return Ok(None) };
        let parsed = serde_json::from_str(&note);
        let damaged = |error| CheckpointError::damaged(path, format!("what it says of its training: {error}"));
        Ok(Some(parsed.map_err(damaged)?))
    }

    pub(crate) fn to_note(&self) -> String {
        serde_json::to_string(self).expect("texts have a form in JSON")
    }

    /// # Errors
    /// A recipe that this version does not read.
    pub(crate) fn recipe(&self, origin: &str) -> Result<Recipe, TrainError> {
        Ok(Recipe::from_toml(&self.recipe, origin, &[])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{NamedTensor, read_safetensors, write_safetensors, write_safetensors_with_note};
    use crate::loaded_weights::{recipe_of, vocabulary_of};
    use crate::tasks::registry;
    use tempfile::TempDir;

    /// What a file says of weights of this model that TensorFlow wrote, or another.
    fn said(model: &str, is_tensorflow: bool) -> Option<Provenance> {
        let model = registry::find(model).unwrap();
        let (family, tensors, origin) = (model.family(), Vec::new(), "W".to_owned());
        let trained = LoadedWeights { family, tensors, origin, recipe: None, is_tensorflow, vocabulary: None };
        Provenance::of(model, &trained, Path::new("nowhere")).unwrap()
    }

    #[test]
    fn conventions_of_tensorflow_go_along() {
        for (model, section, field, value) in [
            ("resnet50", "data", "label_offset", "1"),
            ("efficientdet-d0", "model", "edge_weights", "\"signed\""),
            ("efficientdet-d0", "detection", "suppression", "\"soft\""),
            ("mask-rcnn", "model", "flavour", "\"nvidia\""),
        ] {
            let recipe = said(model, true).unwrap().recipe("W").unwrap();
            assert_eq!(recipe.to_table()[section][field].to_string(), value, "{model}");
        }
        for model in ["resnet50", "efficientdet-d0", "mask-rcnn", "bert-base"] {
            assert_eq!(said(model, false), None, "{model}: as it is published");
        }
        assert_eq!(said("bert-base", true), None);
    }

    #[test]
    fn all_recipes_can_be_read_without_places() {
        let overrides = ["data.source=/home/photos", "start.weights=/home/weights"].map(|text| text.parse().unwrap());
        for (name, _) in registry::recipes() {
            let recipe = Recipe::load(name, &overrides).unwrap();
            let portable = recipe.to_portable_toml();
            assert!(!portable.contains("/home"), "{portable}");
            let mut without = Recipe::load(name, &[]).unwrap();
            without.data.source = None;
            assert_eq!(Recipe::from_toml(&portable, name, &[]).unwrap(), without);
        }
    }

    #[test]
    fn others_read_the_file() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("noted");
        for count in [0, 2] {
            let tensor = |name: usize| NamedTensor::from_f32(name.to_string(), vec![1], &[1.0]).unwrap();
            let tensors: Vec<NamedTensor<'_>> = (0..count).map(tensor).collect();
            write_safetensors_with_note(&path, &tensors, "a \"note\"").unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
            let texts = metadata.metadata().clone().unwrap();
            assert_eq!((texts["format"].as_str(), texts["bessemer"].as_str()), ("pt", "a \"note\""));
            assert_eq!(read_safetensors(&path).unwrap(), tensors);
        }
    }

    #[test]
    fn what_is_damaged_is_told() {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        let tensors = [NamedTensor::from_f32("a", vec![1], &[1.0]).unwrap()];
        write_safetensors(&path("silent"), &tensors).unwrap();
        assert!(recipe_of(&path("silent")).unwrap().is_none() && vocabulary_of(&path("silent")).unwrap().is_none());
        for (note, words) in [
            ("{", "what it says of its training"),
            (r#"{"recipe": "name = 'own'\ndescription = ''\n[model]\nname = 'no-such'"}"#, "no-such"),
        ] {
            write_safetensors_with_note(&path("odd"), &tensors, note).unwrap();
            let error = recipe_of(&path("odd")).unwrap_err();
            assert!(error.to_string().contains(words) && error.to_string().contains("odd"), "{error}");
            assert_eq!(error.kind().exit_code(), 2);
        }
    }
}
