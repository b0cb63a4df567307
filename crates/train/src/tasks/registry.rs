//! The families of models: the one list that knows them all.

use super::MetricSchema;
use super::family::{Family, ModelInfo};
use crate::error::TrainError;
use bessemer_models::ModelError;
use bessemer_weights::{JointWeights, NamedTensor};
use std::fmt;

/// All families, in the order of lists.
pub static FAMILIES: &[&dyn Family] = &[
    // A family is its folder and a line here. The first one is that of models that the zoo does not have.
    &super::classification::FAMILY,
    &super::pretraining::FAMILY,
    &super::electra::FAMILY,
    &super::squad::FAMILY,
    &super::detection::efficientdet::FAMILY,
    &super::detection::maskrcnn::FAMILY,
    #[cfg(test)]
    &super::example::FAMILY,
];

/// A model of the zoo and its family.
#[derive(Clone, Copy)]
pub struct ZooModel {
    family: &'static dyn Family,
    info: ModelInfo,
}

impl ZooModel {
    /// The family that the model is of.
    pub fn family(&self) -> &'static dyn Family {
        self.family
    }

    /// Name in commands and recipes.
    pub fn name(&self) -> &'static str {
        self.info.name
    }

    /// One line for lists of models.
    pub fn description(&self) -> &'static str {
        self.info.description
    }

    /// Settings of recipes that make another variant of it, as `--set` takes them.
    pub fn variants(&self) -> &'static [&'static str] {
        self.info.variants
    }
}

impl fmt::Debug for ZooModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ZooModel").field(&self.name()).finish()
    }
}

/// All models of all families.
pub fn all() -> impl Iterator<Item = ZooModel> {
    FAMILIES.iter().flat_map(|&family| family.models().into_iter().map(move |info| ZooModel { family, info }))
}

/// The model named `name`, or known by it for short.
///
/// # Errors
/// [`ModelError::Unknown`], which lists all.
pub fn find(name: &str) -> Result<ZooModel, ModelError> {
    let mut short_names = FAMILIES.iter().flat_map(|family| family.short_names());
    let full = short_names.find(|(short, _)| *short == name).map_or(name, |(_, full)| full);
    all().find(|model| model.name() == full).ok_or_else(|| ModelError::Unknown {
        name: full.to_owned(),
        known: all().map(|model| model.name()).collect::<Vec<_>>().join(", "),
    })
}

/// Name and text of each recipe that the program carries.
pub fn recipes() -> impl Iterator<Item = (&'static str, &'static str)> {
    FAMILIES.iter().flat_map(|family| family.recipes().iter().copied())
}

/// Models that are published as two networks.
pub(crate) fn joint_weights() -> impl Iterator<Item = &'static JointWeights> {
    FAMILIES.iter().filter_map(|family| family.joint_weights())
}

/// Which models are compared with other frameworks, in words.
pub fn compared() -> String {
    FAMILIES.iter().filter_map(|family| family.compared()).collect::<Vec<_>>().join(", ")
}

/// What logs and tables of model `name` call things; those of images for a model that the zoo does not have.
pub fn metric_schema(name: &str) -> &'static MetricSchema {
    find(name).map_or(FAMILIES[0], |model| model.family()).metric_schema()
}

/// Says in one line what loading would say tensor by tensor.
///
/// # Errors
/// Weights of another size, or of another family, than those of a model.
pub(crate) fn check_weights(model: ZooModel, tensors: &[NamedTensor<'_>], origin: &str) -> Result<(), TrainError> {
    let own = model.family.recognise(tensors);
    if own.as_ref().is_some_and(|own| own.models.contains(&model.name())) {
        return Ok(());
    }
    let others = || FAMILIES.iter().filter_map(|family| family.recognise(tensors)).collect::<Vec<_>>();
    let Some(seen) = own.or_else(|| others().into_iter().next()) else { return Ok(()) };
    let fitting =
        seen.models.first().copied().or_else(|| others().iter().find_map(|seen| seen.models.first().copied()));
    let fitting = fitting.map_or_else(String::new, |name| format!(": {name}"));
    Err(TrainError::setting("the model", model.name(), format!("{origin} holds {}{fitting}", seen.what)))
}

/// The model that tensors are of: that of the family which knows most of their names.
///
/// # Errors
/// Tensors of no model; the message names the closest one.
pub(crate) fn recognise(tensors: &[NamedTensor<'_>], origin: &str) -> Result<ZooModel, TrainError> {
    let mut best: Option<(usize, &'static str)> = None;
    for seen in FAMILIES.iter().filter_map(|family| family.recognise(tensors)) {
        if let Some(&name) = seen.models.first()
            && best.is_none_or(|(most, _)| seen.known > most)
        {
            best = Some((seen.known, name));
        }
    }
    if let Some((_, name)) = best {
        return Ok(find(name)?);
    }
    let closest = FAMILIES.iter().filter_map(|family| family.closest(tensors));
    Err(match closest.min_by_key(|(_, misfit)| misfit.problems()) {
        Some((name, source)) => TrainError::Weights {
            origin: format!("{origin}: fits no model of the zoo; of {name}, the closest"),
            source,
        },
        None => TrainError::setting("the path of the weights", origin, "they fit no model of the zoo"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Recipe;
    use crate::workload::Mode;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_short_ones_lead_somewhere() {
        let names: Vec<&str> = all().map(|model| model.name()).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        for (short, full) in FAMILIES.iter().flat_map(|family| family.short_names()) {
            assert!(!names.contains(short) && find(short).unwrap().name() == *full);
        }
        let error = find("bret").unwrap_err().to_string();
        assert!(error.contains("`bret`") && error.contains("bert-tiny") && error.contains("resnet50"), "{error}");
    }

    #[test]
    fn variants_are_settings_of_recipes() {
        for model in all() {
            let recipe = model.family().default_recipe(model.name(), None);
            for setting in model.variants() {
                let settings = [&*format!("model.name={}", model.name()), setting].map(|text| text.parse().unwrap());
                if let Err(error) = Recipe::load(recipe, &settings) {
                    panic!("{}, {setting}: {error}", model.name());
                }
            }
        }
    }

    #[test]
    fn every_family_is_whole() {
        for model in all() {
            let (family, name) = (model.family(), model.name());
            assert!(family.summary(name).unwrap().parameters > 0);
            assert!(!family.sample(name).unwrap().shape.is_empty());
            let recipe = family.default_recipe(name, None);
            assert!(family.recipes().iter().any(|(known, _)| *known == recipe), "{recipe} is of {name}'s family");
        }
        for family in FAMILIES {
            assert!(!family.noun().is_empty() && !family.representatives().is_empty());
            let benchmark = family.benchmark();
            assert!(family.models().iter().any(|model| model.name == benchmark.model), "{benchmark:?}");
            assert!(Mode::ALL.iter().all(|&mode| !benchmark.batches(mode).is_empty()), "{benchmark:?}");
            assert!(family.representatives().iter().all(|name| find(name).is_ok()));
        }
    }
}
