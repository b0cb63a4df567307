//! Classes of a model from ids of categories.

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

/// Classes of a data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    names: Vec<String>,
    /// Id of the category of each class, if one has it.
    ids: Vec<Option<i64>>,
    by_id: AHashMap<i64, u32>,
}

/// Largest id of a category whose classes are numbered by ids.
const MOST_RAW_ID: i64 = 9_999;

impl Classes {
    /// The classes of `categories`, which are sorted by id. `path` is named in errors.
    ///
    /// # Errors
    /// No category; ids outside 1 to 9999 where classes are numbered by them.
    pub fn new(path: &Path, categories: &[Category], numbering: CategoryIds) -> Result<Self, DataError> {
        let Some(last) = categories.last() else {
            return Err(DataError::layout(path, "no category", "at least one category"));
        };
        let mut ids = match numbering {
            CategoryIds::Dense => vec![None; categories.len()],
            CategoryIds::Raw => {
                let first = &categories[0];
                if let Some(bad) = [first, last].into_iter().find(|found| !(1..=MOST_RAW_ID).contains(&found.id)) {
                    let problem = format!("the category `{}` has id {}", bad.name, bad.id);
                    let expected =
                        format!("ids of 1 to {MOST_RAW_ID}, or classes numbered by rank (category ids dense)");
                    return Err(DataError::layout(path, problem, expected));
                }
                vec![None; last.id as usize + 1]
            }
        };
        let mut names: Vec<String> = (1..=ids.len()).map(|id| format!("unused {id}")).collect();
        let mut by_id = AHashMap::with_capacity(categories.len());
        for (rank, Category { id, name }) in categories.iter().enumerate() {
            let class = match numbering {
                CategoryIds::Raw => *id as usize - 1,
                CategoryIds::Dense => rank,
            };
            names[class].clone_from(name);
            ids[class] = Some(*id);
            by_id.insert(*id, class as u32);
        }
        Ok(Self { names, ids, by_id })
    }

    /// Names by class; those of classes without a category begin with `unused`.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Number of categories.
    pub fn categories(&self) -> usize {
        self.by_id.len()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(ids: &[i64], numbering: CategoryIds) -> Result<Classes, DataError> {
        let category = |&id: &i64| Category { id, name: format!("c{id}") };
        Classes::new(Path::new("a.json"), &ids.iter().map(category).collect::<Vec<_>>(), numbering)
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
    fn ids_that_cannot_number_classes_are_refused() {
        for ids in [[0, 1], [-4, 1], [1, 10_000]] {
            let error = classes(&ids, CategoryIds::Raw).unwrap_err().to_string();
            assert!(error.starts_with("a.json: the category `c") && error.contains("dense"), "{error}");
        }
        assert!(classes(&[], CategoryIds::Dense).unwrap_err().to_string().contains("no category"));
    }
}
