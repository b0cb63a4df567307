//! Whether a run may go on with the settings it is given.

use crate::error::Difference;
use crate::recipe::{Recipe, ScheduleKind};
use std::collections::BTreeMap;
use toml::Value;

/// Length of the run; free where the learning rate does not depend on it.
pub(crate) const LENGTH: [&str; 2] = ["train.epochs", "train.steps"];

const DATA_IDENTITY: &str = "data identity";

/// What decides the course of a run and differs: fields of the recipes `(saved, given)`, and the data sets' identities.
pub(crate) fn differences(recipes: (&Recipe, &Recipe), data: (&str, &str)) -> Vec<Difference> {
    let (saved, given) = (fields(recipes.0), fields(recipes.1));
    let schedule = &recipes.1.schedule;
    let length_is_free = matches!(schedule.kind, ScheduleKind::Constant | ScheduleKind::Step)
        && schedule.warmup_fraction.is_none()
        && recipes.0.schedule.warmup_fraction.is_none();
    let free = [recipes.0.free_fields(), recipes.1.free_fields()];
    let is_free = |field: &str| {
        ["name", "description"].contains(&field)
            || free.iter().any(|free| free.contains(field))
            || (length_is_free && LENGTH.contains(&field))
    };
    let names: BTreeMap<&String, ()> = saved.keys().chain(given.keys()).map(|name| (name, ())).collect();
    let show = |value: Option<&Value>| value.map_or_else(|| "not given".to_owned(), Value::to_string);
    let mut differences: Vec<Difference> = names
        .into_keys()
        .filter(|name| saved.get(*name) != given.get(*name) && !is_free(name))
        .map(|name| Difference { field: name.clone(), checkpoint: show(saved.get(name)), given: show(given.get(name)) })
        .collect();
    if data.0 != data.1 {
        let (checkpoint, given) = (data.0.to_owned(), data.1.to_owned());
        differences.push(Difference { field: DATA_IDENTITY.to_owned(), checkpoint, given });
    }
    differences
}

/// All fields by dotted path.
fn fields(recipe: &Recipe) -> BTreeMap<String, Value> {
    let flat = recipe.to_table().into_iter().flat_map(|(name, value)| match value {
        Value::Table(section) => {
            section.into_iter().map(|(field, value)| (format!("{name}.{field}"), value)).collect::<Vec<_>>()
        }
        value => vec![(name, value)],
    });
    flat.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(saved: &[&str], given: &[&str], data: (&str, &str)) -> Vec<String> {
        let recipe = |overrides: &[&str]| {
            let overrides: Vec<_> = overrides.iter().map(|text| text.parse().unwrap()).collect();
            Recipe::load("shapes-quick", &overrides).unwrap()
        };
        let found = differences((&recipe(saved), &recipe(given)), data);
        found.into_iter().map(|difference| difference.to_string()).collect()
    }

    #[test]
    fn what_changes_the_course_is_named() {
        let given = ["optimizer.momentum=0.5", "train.clip_norm=1.0", "loader.workers=3", "eval.every_steps=2"];
        let expected = [
            "optimizer.momentum: 0.9 in the checkpoint, 0.5 now",
            "train.clip_norm: not given in the checkpoint, 1.0 now",
            "data identity: a in the checkpoint, b now",
        ];
        assert_eq!(named(&[], &given, ("a", "b")), expected);
        assert_eq!(named(&[], &["data.source=folder", "name=x", "checkpoint.keep=9"], ("a", "a")), [""; 0]);
    }

    #[test]
    fn length_matters_where_the_learning_rate_depends_on_it() {
        assert_eq!(named(&[], &["train.epochs=7"], ("a", "a")), ["train.epochs: 1 in the checkpoint, 7 now"]);
        let constant = "schedule.kind=constant";
        assert_eq!(named(&[constant], &[constant, "train.steps=7"], ("a", "a")), [""; 0]);
        let warmup = [constant, "schedule.warmup_epochs=", "schedule.warmup_fraction=0.1"];
        let longer = [&warmup[..], &["train.epochs=7"]].concat();
        assert_eq!(named(&warmup, &longer, ("a", "a")), ["train.epochs: 1 in the checkpoint, 7 now"]);
    }
}
