//! What a file of weights says of how they were trained, so that it is taken as the run was that it comes from.

use crate::error::TrainError;
use crate::loaded_weights::{LoadedWeights, text_of_run};
use crate::recipe::Recipe;
use crate::tasks::registry::ZooModel;
use bessemer_data::text::VocabularyIdentity;
use bessemer_weights::{FileError, note_of_safetensors};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// A note in the metadata of a safetensors file, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Provenance {
    /// The recipe as TOML, without the places of its data and of the weights that it began with: that of the run, or the one in whose form
    /// the file of another program was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recipe: Option<String>,
    /// Whether TensorFlow wrote the weights.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_tensorflow: bool,
    /// The vocabulary that the weights were trained with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<VocabularyIdentity>,
    /// Texts from the folder of the run, by the names of their files there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
}

impl Provenance {
    /// That of the weights of a path; `None` where nothing is known but their names.
    ///
    /// # Errors
    /// A file of the run that cannot be read.
    pub(crate) fn of(model: ZooModel, trained: &LoadedWeights, weights: &Path) -> Result<Option<Self>, TrainError> {
        let family = model.family();
        let LoadedWeights { tensors, is_tensorflow, vocabulary, .. } = trained;
        let (is_tensorflow, vocabulary) = (*is_tensorflow, vocabulary.clone());
        let mut files = BTreeMap::new();
        let recipe = match &trained.recipe {
            Some(recipe) => {
                for name in family.class_files() {
                    files.extend(text_of_run(weights, name)?.map(|found| ((*name).to_owned(), found.text)));
                }
                Some(recipe.clone())
            }
            None => family.recipe_of_file(model.name(), tensors, is_tensorflow)?,
        };
        let recipe = recipe.map(|recipe| recipe.to_portable_toml());
        let is_known = recipe.is_some() || is_tensorflow || vocabulary.is_some();
        Ok(is_known.then_some(Self { recipe, is_tensorflow, vocabulary, files }))
    }

    /// What a file says; `None` for one that says nothing, and for folders.
    ///
    /// # Errors
    /// A file that cannot be read; a note that is damaged.
    pub(crate) fn in_file(path: &Path) -> Result<Option<Self>, TrainError> {
        if !path.is_file() {
            return Ok(None);
        }
        let Some(note) = note_of_safetensors(path)? else { return Ok(None) };
        Ok(Some(serde_json::from_str(&note).map_err(|error| damaged(path, &error))?))
    }

    pub(crate) fn to_note(&self) -> String {
        serde_json::to_string(self).expect("texts have a form in JSON")
    }

    /// The recipe that the file of a path says.
    ///
    /// # Errors
    /// A recipe that this version does not read.
    pub(crate) fn recipe(&self, path: &Path) -> Result<Option<Recipe>, TrainError> {
        let read = |text: &String| Recipe::from_toml(text, "in it", &[]).map_err(|error| damaged(path, &error));
        Ok(self.recipe.as_ref().map(read).transpose()?)
    }
}

fn damaged(path: &Path, error: &dyn std::error::Error) -> FileError {
    let reason = format!("what it says of its training is damaged, or of another version of this program: {error}");
    FileError::damaged(path, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loaded_weights::Training;
    use crate::tasks::registry;
    use bessemer_weights::{NamedTensor, read_safetensors, write_safetensors, write_safetensors_with_note};
    use tempfile::TempDir;

    /// What a file says of weights of this model that TensorFlow wrote, or another, with a tensor of this name.
    fn said(model: &str, is_tensorflow: bool, tensor: &str) -> Option<Provenance> {
        let model = registry::find(model).unwrap();
        let tensors = vec![NamedTensor::from_f32(tensor, vec![1], &[1.0]).unwrap()];
        let (family, origin) = (model.family(), "W".to_owned());
        let trained = LoadedWeights { family, tensors, origin, recipe: None, is_tensorflow, vocabulary: None };
        Provenance::of(model, &trained, Path::new("nowhere")).unwrap()
    }

    #[test]
    fn conventions_of_other_programs_go_along() {
        let published = "backbone.fpn.inner_blocks.0.weight";
        for (model, is_tensorflow, tensor, section, field, value) in [
            ("resnet50", true, "fc.bias", "data", "spare_outputs", "0"),
            ("resnet50", true, "", "data", "resampling", "\"legacy\""),
            ("efficientdet-d0", true, "", "model", "edge_weights", "\"signed\""),
            ("efficientdet-d0", true, "", "detection", "suppression", "\"soft\""),
            ("efficientdet-d0", false, "", "model", "edge_weights", "\"positive\""),
            ("mask-rcnn", true, "", "model", "flavour", "\"nvidia\""),
            ("mask-rcnn", false, "", "model", "bn_eps", "0.00001"),
            ("mask-rcnn", false, published, "model", "bn_eps", "0.0"),
        ] {
            let said = said(model, is_tensorflow, tensor).unwrap();
            let recipe = said.recipe(Path::new("W")).unwrap().unwrap();
            assert_eq!(
                (recipe.to_table()[section][field].to_string(), said.is_tensorflow),
                (value.to_owned(), is_tensorflow)
            );
        }
        for model in ["efficientnet-b0", "bert-base"] {
            let said = said(model, true, "").unwrap();
            assert_eq!((said.recipe, said.is_tensorflow), (None, true), "{model}");
        }
        for model in ["resnet50", "efficientnet-b0", "bert-base"] {
            assert_eq!(said(model, false, ""), None, "{model}: as it is published");
        }
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
        let silent = Training::of(&path("silent")).unwrap();
        assert!(silent.recipe.is_none() && silent.vocabulary.is_none());
        write_safetensors_with_note(&path("tensorflow"), &tensors, r#"{"is_tensorflow": true}"#).unwrap();
        let found = ["silent", "tensorflow"].map(|name| Training::of(&path(name)).unwrap().is_tensorflow);
        assert_eq!(found, [false, true]);
        for (note, words) in [
            ("{", "damaged"),
            (r#"{"recipe": "name = 'own'\ndescription = ''\n[model]\nname = 'no-such'"}"#, "no-such"),
        ] {
            write_safetensors_with_note(&path("odd"), &tensors, note).unwrap();
            let error = Training::of(&path("odd")).err().unwrap();
            assert!(error.to_string().contains(words) && error.to_string().contains("odd"), "{error}");
            assert_eq!(error.kind().exit_code(), 2);
        }
    }
}
