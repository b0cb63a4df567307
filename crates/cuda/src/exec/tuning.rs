//! The file of the engines that were the fastest ones when they were measured.

use crate::cubins::replace;
use crate::error::GpuError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The fastest engine for a convolution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Choice {
    /// Number of the configuration among those that cuDNN's heuristics give.
    pub configuration: usize,
    /// cuDNN's number for its engine.
    pub engine: i64,
    /// What a launch took.
    pub microseconds: f64,
}

/// Choices by device, with the versions of its driver and libraries, and by convolution.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Choices(BTreeMap<String, BTreeMap<String, Choice>>);

impl Choices {
    /// What the file holds; nothing if it cannot be read.
    pub(super) fn read(file: &Path) -> Choices {
        std::fs::read(file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    pub(super) fn get(&self, device: &str, convolution: &str) -> Option<&Choice> {
        self.0.get(device)?.get(convolution)
    }

    /// Adds to what the file holds by now.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn add(file: &Path, device: &str, chosen: Vec<(String, Choice)>) -> Result<(), GpuError> {
        let mut all = Choices::read(file);
        all.0.entry(device.to_owned()).or_default().extend(chosen);
        let failed = |source| GpuError::Io { path: file.to_owned(), source };
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut text = serde_json::to_vec_pretty(&all).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        replace(file, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_added_to_those_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deeper").join("engines.json");
        let choice = |engine| Choice { configuration: 2, engine, microseconds: 12.5 };
        let add = |device, name: &str, engine| Choices::add(&file, device, vec![(name.to_owned(), choice(engine))]);
        add("a", "x", 1).unwrap();
        add("a", "y", 2).unwrap();
        add("b", "x", 3).unwrap();
        add("a", "x", 4).unwrap();
        let all = Choices::read(&file);
        let get = |device, name| all.get(device, name).map(|choice| choice.engine);
        assert_eq!([get("a", "x"), get("a", "y"), get("b", "x"), get("b", "y")], [Some(4), Some(2), Some(3), None]);
        assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        std::fs::write(&file, "{\"a\":").unwrap();
        assert_eq!(Choices::read(&file), Choices::default());
        add("a", "x", 5).unwrap();
        assert_eq!(Choices::read(&file).get("a", "x"), Some(&choice(5)));
    }
}
