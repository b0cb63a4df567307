//! `peer.toml`: what a peer is, and on which Pythons it can be installed.

use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Description {
    pub name: String,
    pub title: String,
    pub language: Language,
    /// A file with the packages and their versions.
    pub requirements: Option<String>,
    pub python: Option<PythonVersions>,
    /// Where it comes from.
    #[serde(default)]
    pub source: String,
    #[serde(default)]
    pub note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Language {
    Python,
    Rust,
}

/// A version of Python: `(3, 12)`.
pub(super) type PythonVersion = (u32, u32);

/// Conditions such as `>=3.9,<3.14`, of which all must hold.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct PythonVersions {
    text: String,
    conditions: Vec<(Relation, PythonVersion)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    AtLeast,
    Below,
    AtMost,
    Equal,
}

impl PythonVersions {
    pub(super) fn allow(&self, version: PythonVersion) -> bool {
        self.conditions.iter().all(|(relation, bound)| match relation {
            Relation::AtLeast => version >= *bound,
            Relation::Below => version < *bound,
            Relation::AtMost => version <= *bound,
            Relation::Equal => version == *bound,
        })
    }
}

impl fmt::Display for PythonVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TryFrom<String> for PythonVersions {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for PythonVersions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let relations =
            [(">=", Relation::AtLeast), ("<=", Relation::AtMost), ("==", Relation::Equal), ("<", Relation::Below)];
        let condition = |part: &str| {
            let part = part.trim();
            let found = relations.into_iter().find_map(|(sign, relation)| Some((relation, part.strip_prefix(sign)?)));
            let parsed = found.and_then(|(relation, version)| Some((relation, python_version(version.trim())?)));
            parsed.ok_or_else(|| format!("`{part}` is no condition such as >=3.9 or <3.14"))
        };
        Ok(Self { text: text.to_owned(), conditions: text.split(',').map(condition).collect::<Result<_, _>>()? })
    }
}

/// The first two numbers of `3.12` or `3.12.1`.
pub(super) fn python_version(text: &str) -> Option<PythonVersion> {
    let mut numbers = text.split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        let versions: PythonVersions = ">=3.9, <3.14".parse().unwrap();
        for (version, allowed) in [((3, 8), false), ((3, 9), true), ((3, 13), true), ((3, 14), false), ((4, 0), false)]
        {
            assert_eq!(versions.allow(version), allowed, "{version:?}");
        }
        assert!("3.9".parse::<PythonVersions>().is_err() && ">=three".parse::<PythonVersions>().is_err());
        assert_eq!(python_version("3.12.4"), Some((3, 12)));
        assert_eq!(python_version("3"), None);
    }

    #[test]
    fn a_file_is_read() {
        let text = "name = 'x'\ntitle = 'X'\nlanguage = 'python'\nrequirements = 'r.txt'\npython = '>=3.9'\n";
        let read: Description = toml::from_str(text).unwrap();
        assert_eq!((read.name.as_str(), read.language), ("x", Language::Python));
        assert!(toml::from_str::<Description>(&text.replace("python'\nreq", "cobol'\nreq")).is_err());
    }
}
