//! Classes of a model from ids of categories.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::str::FromStr;

use ahash::AHashMap;
use serde::{Deserialize, Serialize};

use super::Category;
use crate::DataError;

/// How categories become classes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CategoryIds {
    /// Class = id - 1, and one class more than the largest id: 91 for COCO, 11 of them unused, as EfficientDet's reference has
    /// them.
    #[default]
    Raw,
    /// Class = rank of the id: 80 for COCO.
    Dense,
}

impl FromStr for CategoryIds {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        match name {
            "raw" => Ok(Self::Raw),
            "dense" => Ok(Self::Dense),
            other => Err(DataError::option("category ids", other, "raw or dense")),
        }
    }
}

/// Which class a category of a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Numbering {
    /// The one that its id says.
    ByIds(CategoryIds),
    /// The one of its name among these; a class without a category has none. Several classes of one name are taken in their order.
    /// Categories of other names have no class.
    ByNames(Vec<Option<String>>),
}

impl Numbering {
    /// A name that changes with the classes.
    pub(super) fn identity(&self) -> String {
        match self {
            Self::ByIds(CategoryIds::Raw) => "raw".to_owned(),
            Self::ByIds(CategoryIds::Dense) => "dense".to_owned(),
            Self::ByNames(names) => format!("named {names:?}"),
        }
    }
}

impl From<CategoryIds> for Numbering {
    fn from(ids: CategoryIds) -> Self {
        Self::ByIds(ids)
    }
}

/// Classes of a data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    names: Vec<String>,
    /// Id of the category of each class, if one has it.
    ids: Vec<Option<i64>>,
    by_id: AHashMap<i64, u32>,
    without_class: Vec<Category>,
}

/// How many names a message lists.
const LISTED: usize = 10;

/// How classes are given any ids, in messages.
const BY_RANK: &str =
    "numbered by rank: --set data.category_ids=dense for recipes, --category-ids dense for `data sample coco`";

/// Largest id of a category whose classes are numbered by ids.
const MOST_RAW_ID: i64 = 9_999;

impl Classes {
    /// The classes of `categories`, which are sorted by id. `path` is named in errors.
    ///
    /// # Errors
    /// No category; ids outside 1 to 9999 where classes are numbered by them; not one category that is a class where names are compared.
    pub fn new(path: &Path, categories: &[Category], numbering: &Numbering) -> Result<Self, DataError> {
        if categories.is_empty() {
            return Err(DataError::layout(path, "no category", "at least one category"));
        }
        let (mut names, class_of) = match numbering {
            Numbering::ByIds(CategoryIds::Dense) => {
                (vec![None; categories.len()], (0..categories.len() as u32).map(Some).collect())
            }
            Numbering::ByIds(CategoryIds::Raw) => (vec![None; largest_id(path, categories)? + 1], by_ids(categories)),
            Numbering::ByNames(names) => (names.clone(), by_names(path, categories, names)?),
        };
        let mut classes = Self {
            names: Vec::new(),
            ids: vec![None; names.len()],
            by_id: AHashMap::with_capacity(categories.len()),
            without_class: Vec::new(),
        };
        for (category, class) in categories.iter().zip(class_of) {
            match class {
                Some(class) => {
                    names[class as usize] = Some(category.name.clone());
                    classes.ids[class as usize] = Some(category.id);
                    classes.by_id.insert(category.id, class);
                }
                None => classes.without_class.push(category.clone()),
            }
        }
        let name = |(name, number): (Option<String>, usize)| name.unwrap_or_else(|| format!("unused {number}"));
        classes.names = names.into_iter().zip(1..).map(name).collect();
        Ok(classes)
    }

    /// Names by class; those of classes without a category begin with `unused`.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Number of categories that are classes.
    pub fn categories(&self) -> usize {
        self.by_id.len()
    }

    /// Categories that are none of the classes, by ascending id.
    pub fn without_class(&self) -> &[Category] {
        &self.without_class
    }

    /// The class of a category.
    pub fn class(&self, category_id: i64) -> Option<u32> {
        self.by_id.get(&category_id).copied()
    }

    /// Id of the category of a class, for results.
    pub fn category_id(&self, class: u32) -> Option<i64> {
        self.ids.get(class as usize).copied().flatten()
    }
}

/// What a person should know of categories: ids that cannot number classes, and names of several.
pub(super) fn category_notes<'a>(categories: impl Iterator<Item = (i64, &'a str)>) -> Vec<String> {
    let mut of_name: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    let (mut least, mut most) = (i64::MAX, i64::MIN);
    for (id, name) in categories {
        (least, most) = (least.min(id), most.max(id));
        of_name.entry(name).or_default().push(id);
    }
    let mut notes = Vec::new();
    if least < 1 {
        notes.push(format!("ids of categories begin at {least}, not at 1: to train on them, have classes {BY_RANK}"));
    }
    if most > MOST_RAW_ID {
        notes.push(format!(
            "ids of categories go up to {most}, beyond {MOST_RAW_ID}: to train on them, have classes {BY_RANK}"
        ));
    }
    for (name, ids) in of_name.iter().filter(|(_, ids)| ids.len() > 1) {
        let ids = ids.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        notes.push(format!("several categories have the name `{name}`, those with the ids {ids}"));
    }
    notes
}

/// The largest id of categories that are numbered by ids.
fn largest_id(path: &Path, categories: &[Category]) -> Result<usize, DataError> {
    let is_out_of_range = |category: &&Category| !(1..=MOST_RAW_ID).contains(&category.id);
    if let Some(bad) = categories.iter().find(is_out_of_range) {
        let problem = format!("the category `{}` has id {}", bad.name, bad.id);
        let expected = format!("ids of 1 to {MOST_RAW_ID}, or classes {BY_RANK}");
        return Err(DataError::layout(path, problem, expected));
    }
    Ok(categories.iter().map(|category| category.id as usize).max().unwrap_or(0))
}

fn by_ids(categories: &[Category]) -> Vec<Option<u32>> {
    categories.iter().map(|category| Some(category.id as u32 - 1)).collect()
}

/// The class of each category by its name.
fn by_names(path: &Path, categories: &[Category], names: &[Option<String>]) -> Result<Vec<Option<u32>>, DataError> {
    let mut of_name: AHashMap<&str, VecDeque<u32>> = AHashMap::new();
    for (name, class) in names.iter().zip(0..) {
        if let Some(name) = name {
            of_name.entry(name).or_default().push_back(class);
        }
    }
    let class = |category: &Category| of_name.get_mut(category.name.as_str()).and_then(VecDeque::pop_front);
    let classes: Vec<Option<u32>> = categories.iter().map(class).collect();
    if classes.iter().all(Option::is_none) {
        let there = listed(categories.iter().map(|category| category.name.as_str()));
        let known = listed(names.iter().flatten().map(String::as_str));
        return Err(DataError::layout(path, format!("none of its categories is a class of the model: {there}"), known));
    }
    Ok(classes)
}

/// The first names, as a message lists them.
pub fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.take(LISTED + 1).collect();
    if names.len() > LISTED {
        names[LISTED] = "...";
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(ids: &[i64], numbering: impl Into<Numbering>) -> Result<Classes, DataError> {
        let category = |&id: &i64| Category { id, name: format!("c{id}") };
        Classes::new(Path::new("a.json"), &ids.iter().map(category).collect::<Vec<_>>(), &numbering.into())
    }

    fn by_names(names: &[Option<&str>]) -> Numbering {
        Numbering::ByNames(names.iter().map(|name| name.map(str::to_owned)).collect())
    }

    #[test]
    fn categories_are_the_classes_of_their_names() {
        let model = by_names(&[Some("c7"), None, Some("dog"), Some("c3")]);
        let matched = classes(&[3, 5, 7], model.clone()).unwrap();
        assert_eq!((matched.class(7), matched.class(3), matched.class(5)), (Some(0), Some(3), None));
        assert_eq!([0, 1, 2, 3].map(|class| matched.category_id(class)), [Some(7), None, None, Some(3)]);
        assert_eq!(matched.names(), ["c7", "unused 2", "dog", "c3"]);
        assert_eq!(matched.without_class(), [Category { id: 5, name: "c5".to_owned() }]);
        let error = classes(&[1, 2], model).unwrap_err().to_string();
        assert!(error.contains("none of its categories is a class of the model: c1, c2"), "{error}");
        assert!(error.contains("c7, dog, c3"), "{error}");
    }

    #[test]
    fn classes_of_one_name_are_taken_in_their_order() {
        let categories = [1, 2, 3].map(|id| Category { id, name: "part".to_owned() });
        let matched = Classes::new(Path::new("a.json"), &categories, &by_names(&[Some("part"); 2])).unwrap();
        assert_eq!([1, 2, 3].map(|id| matched.class(id)), [Some(0), Some(1), None]);
    }

    #[test]
    fn ids_and_classes_are_found_again() {
        let raw = classes(&[1, 3, 90], CategoryIds::Raw).unwrap();
        assert_eq!((raw.names().len(), raw.class(1), raw.class(90), raw.class(2)), (91, Some(0), Some(89), None));
        assert_eq!((raw.category_id(2), raw.category_id(1), raw.category_id(91)), (Some(3), None, None));
        assert_eq!(raw.names()[..3], ["c1", "unused 2", "c3"]);
        let dense = classes(&[0, 3, 90_000_000], CategoryIds::Dense).unwrap();
        assert_eq!(dense.names(), ["c0", "c3", "c90000000"]);
        assert_eq!((dense.class(90_000_000), dense.category_id(2)), (Some(2), Some(90_000_000)));
    }

    #[test]
    fn ids_and_names_to_know_of_are_noted() {
        assert!(category_notes([(1, "dog"), (9_999, "cat")].into_iter()).is_empty());
        let notes = category_notes([(0, "dog"), (3, "cat"), (10_000, "dog")].into_iter());
        assert!(notes[0].starts_with("ids of categories begin at 0, not at 1"), "{notes:?}");
        assert!(notes[1].starts_with("ids of categories go up to 10000"), "{notes:?}");
        assert_eq!(notes[2..], ["several categories have the name `dog`, those with the ids 0, 10000"]);
    }

    #[test]
    fn ids_that_cannot_number_classes_are_refused() {
        for ids in [[0, 1], [-4, 1], [1, 10_000]] {
            let error = classes(&ids, CategoryIds::Raw).unwrap_err().to_string();
            assert!(error.starts_with("a.json: the category `c"), "{error}");
            assert!(error.contains("--set data.category_ids=dense"), "{error}");
        }
        assert!(classes(&[], CategoryIds::Dense).unwrap_err().to_string().contains("no category"));
    }
}
