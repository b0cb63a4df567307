//! The file of what was the fastest way of a library when it was measured: engines of convolutions, algorithms of products.

use super::Gpu;
use crate::cubins::replace;
use crate::cublaslt::Words;
use crate::error::GpuError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The fastest way to do something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Choice {
    #[serde(flatten)]
    pub way: Way,
    /// What a launch took.
    pub microseconds: f64,
}

/// A library's way to do something.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Way {
    /// Of cuDNN.
    Engine {
        /// Number of the configuration among those that cuDNN's heuristics give.
        configuration: usize,
        /// cuDNN's number for its engine.
        engine: i64,
        /// Whether the heuristics are those that have something for every convolution, and not those that order by speed.
        #[serde(default, skip_serializing_if = "is_false")]
        fallback: bool,
    },
    /// Of cuBLASLt.
    Algorithm { algorithm: Words },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(is: &bool) -> bool {
    !is
}

/// Where choices are kept, and which device they are of.
pub(super) struct Tuning {
    /// `None` if nothing is measured.
    file: Option<PathBuf>,
    /// Name of the device, and version of its driver.
    device: String,
}

/// What is known of a library on a device.
pub(super) struct Known<'a> {
    file: &'a Path,
    device: String,
    choices: Choices,
}

impl Tuning {
    pub(super) fn new(file: Option<PathBuf>, device: String) -> Tuning {
        Tuning { file, device }
    }

    /// The device with a library, which is named with its version.
    pub(super) fn device_with(&self, library: &str) -> String {
        format!("{}, {library}", self.device)
    }

    /// What the file holds of a library, which is named with its version; `None` if nothing is measured.
    ///
    /// # Errors
    /// [`GpuError::Tuning`].
    pub(super) fn known(&self, library: &str) -> Result<Option<Known<'_>>, GpuError> {
        let known = |file| {
            let choices = Choices::read(file)?;
            Ok(Known { file, device: self.device_with(library), choices })
        };
        self.file.as_deref().map(known).transpose()
    }
}

impl Known<'_> {
    pub(super) fn get(&self, name: &str) -> Option<&Choice> {
        self.choices.get(&self.device, name)
    }

    /// Adds to the file.
    ///
    /// # Errors
    /// It cannot be read or written.
    fn add(&self, chosen: Vec<(String, Choice)>) -> Result<(), GpuError> {
        if chosen.is_empty() { Ok(()) } else { Choices::add(self.file, &self.device, chosen) }
    }
}

impl Gpu {
    /// Adds what was measured to the file. Where that cannot be done, it is measured again another time.
    pub(super) fn keep(&self, known: &Known<'_>, chosen: Vec<(String, Choice)>) {
        if let Err(error) = known.add(chosen) {
            self.warnings.add(format!("what was measured is not kept: {error}"));
        }
    }
}

/// Choices by device, with the versions of its driver and of the library, and by what is done.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Choices(BTreeMap<String, BTreeMap<String, Choice>>);

impl Choices {
    /// What the file holds; nothing if there is none.
    ///
    /// # Errors
    /// [`GpuError::Tuning`].
    pub(super) fn read(file: &Path) -> Result<Choices, GpuError> {
        let damaged = |reason: String| GpuError::Tuning { path: file.to_owned(), reason };
        match std::fs::read(file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Choices::default()),
            Err(error) => Err(damaged(error.to_string())),
        }
    }

    fn get(&self, device: &str, name: &str) -> Option<&Choice> {
        self.0.get(device)?.get(name)
    }

    /// Adds to what the file holds by now.
    ///
    /// # Errors
    /// It cannot be read or written.
    fn add(file: &Path, device: &str, chosen: Vec<(String, Choice)>) -> Result<(), GpuError> {
        let mut all = Choices::read(file)?;
        all.0.entry(device.to_owned()).or_default().extend(chosen);
        all.write(file)
    }

    fn write(&self, file: &Path) -> Result<(), GpuError> {
        let failed = |source| GpuError::Io { path: file.to_owned(), source };
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut text = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        replace(file, &text)
    }
}

/// Replaces a file of choices that cannot be read by one of none. Why it could not; `None` where it can, or is not there.
///
/// # Errors
/// It cannot be written.
pub fn replace_damaged_tuning(file: &Path) -> Result<Option<GpuError>, GpuError> {
    let Err(damaged) = Choices::read(file) else { return Ok(None) };
    Choices::default().write(file)?;
    Ok(Some(damaged))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_added_to_those_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deeper").join("engines.json");
        let choice =
            |engine| Choice { way: Way::Engine { configuration: 2, engine, fallback: false }, microseconds: 12.5 };
        let add = |device, name: &str, engine| Choices::add(&file, device, vec![(name.to_owned(), choice(engine))]);
        add("a", "x", 1).unwrap();
        add("a", "y", 2).unwrap();
        add("b", "x", 3).unwrap();
        add("a", "x", 4).unwrap();
        let all = Choices::read(&file).unwrap();
        let get = |device, name| all.get(device, name).cloned();
        let expected = [Some(choice(4)), Some(choice(2)), Some(choice(3)), None];
        assert_eq!([get("a", "x"), get("a", "y"), get("b", "x"), get("b", "y")], expected);
        let algorithm = Choice { way: Way::Algorithm { algorithm: [u64::MAX; 8] }, microseconds: 0.5 };
        Choices::add(&file, "a", vec![("z".to_owned(), algorithm.clone())]).unwrap();
        assert_eq!(Choices::read(&file).unwrap().get("a", "z"), Some(&algorithm));
        assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_an_error_until_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("engines.json");
        assert!(replace_damaged_tuning(&file).unwrap().is_none() && !file.exists());
        let choice = Choice { way: Way::Engine { configuration: 2, engine: 5, fallback: false }, microseconds: 12.5 };
        let add = || Choices::add(&file, "a", vec![("x".to_owned(), choice.clone())]);
        for damaged in ["{\"a\":", "", "[]", "{\"a\": {\"x\": {\"engine\": 5}}}"] {
            std::fs::write(&file, damaged).unwrap();
            let message = add().unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("{} holds no choices of engines and algorithms: ", file.display())),
                "{message}"
            );
            assert_eq!(std::fs::read_to_string(&file).unwrap(), damaged, "it is left alone");
            assert_eq!(replace_damaged_tuning(&file).unwrap().unwrap().to_string(), message);
            assert!(replace_damaged_tuning(&file).unwrap().is_none());
            add().unwrap();
            assert_eq!(Choices::read(&file).unwrap().get("a", "x"), Some(&choice));
            assert!(replace_damaged_tuning(&file).unwrap().is_none());
        }
        assert!(replace_damaged_tuning(folder.path()).is_err(), "a folder");
    }
}
