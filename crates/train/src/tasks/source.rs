//! Data sets of images by the names that commands and recipes give them.

use crate::error::TrainError;
use crate::recipe::Recipe;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where images come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataSource {
    /// Random pixels, for speed alone.
    Synthetic,
    /// Shapes drawn from the seed: one in an image for classifiers, scenes of several for detectors.
    Shapes,
    /// A folder in a layout that the family reads.
    Folder(PathBuf),
}

impl DataSource {
    /// `synthetic`, `shapes`, or else a folder.
    pub fn parse(source: impl AsRef<Path>) -> Self {
        let source = source.as_ref();
        match source.to_str() {
            Some("synthetic") => Self::Synthetic,
            Some("shapes") => Self::Shapes,
            _ => Self::Folder(source.to_owned()),
        }
    }

    /// That of a recipe.
    ///
    /// # Errors
    /// A recipe that names none.
    pub fn of(recipe: &Recipe) -> Result<Self, TrainError> {
        let source = recipe.data.source.as_deref();
        source.map(Self::parse).ok_or_else(|| {
            TrainError::setting("data.source", "not given", "expected a folder, `synthetic` or `shapes` (--data)")
        })
    }
}

impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synthetic => f.write_str("synthetic"),
            Self::Shapes => f.write_str("shapes"),
            Self::Folder(path) => write!(f, "{}", path.display()),
        }
    }
}
