//! What a framework says of itself, and what it is asked for.

use crate::{Family, Mode, Request, Result, Work, files::Array};
use serde::Serialize;
use serde_json::{Map, Value};

/// A framework that is measured.
pub trait Framework {
    const NAME: &'static str;
    const VARIANTS: &'static [Variant];

    fn version() -> &'static str;

    /// What it does; everything unless it says otherwise.
    fn offers() -> Vec<Offer> {
        offers()
    }

    /// The step of the work.
    ///
    /// # Errors
    /// What the framework cannot do, and what fails in it.
    fn prepare(request: &Request, work: Work) -> Result<Prepared>;
}

/// A form of a framework.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Variant {
    pub name: &'static str,
    /// Whether it merges operations.
    pub fused: bool,
    /// Whether the framework's name alone stands for it.
    pub default: bool,
    pub settings: &'static str,
}

/// A family of models that a framework does in one mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// The model that stands for the family.
    pub model: &'static str,
    pub mode: Mode,
    pub precisions: &'static [&'static str],
    pub emulated: &'static [&'static str],
}

/// All families in both modes, in fp32.
pub fn offers() -> Vec<Offer> {
    let offer = |family: Family, mode| Offer { model: family.model(), mode, precisions: &["fp32"], emulated: &[] };
    Family::ALL.into_iter().flat_map(|family| [Mode::Train, Mode::Infer].map(|mode| offer(family, mode))).collect()
}

/// What a reader of a measurement should know.
pub type Options = Map<String, Value>;

/// Does the step of a batch, by its number among the batches of the work.
pub type Step = Box<dyn FnMut(usize) -> Result<Done>>;

/// What has been made ready to be timed.
pub struct Prepared {
    pub step: Step,
    pub options: Options,
}

/// What came out of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Done {
    /// Of training: the loss.
    Loss(f64),
    /// Of inference: in the order of [`Family::outputs`], without an axis of batches.
    Outputs(Vec<Array>),
}

/// The version of a package in the text of a `Cargo.lock`.
pub fn locked_version<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name);
    lines.nth(1)?.strip_prefix("version = \"")?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_by_the_whole_name() {
        let lock =
            "[[package]]\nname = \"a-b\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"a\"\nversion = \"2.1.0\"\n";
        assert_eq!(locked_version(lock, "a"), Some("2.1.0"));
        assert_eq!(locked_version(lock, "a-b"), Some("1.0.0"));
        assert_eq!(locked_version(lock, "b"), None);
    }

    #[test]
    fn each_family_is_offered_in_both_modes() {
        let offers = offers();
        assert_eq!(offers.len(), 6);
        let text = serde_json::to_value(&offers[0]).unwrap();
        let expected =
            serde_json::json!({"model": "resnet50", "mode": "train", "precisions": ["fp32"], "emulated": []});
        assert_eq!(text, expected);
    }
}
