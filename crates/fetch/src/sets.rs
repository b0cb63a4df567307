use crate::FetchError;
use crate::error::io_error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A data set that can be downloaded.
#[derive(Clone, Debug, Serialize)]
pub struct DataSet {
    /// Name in the command.
    pub name: String,
    /// What it holds, in a line.
    pub about: String,
    /// A remark, not the text that counts.
    pub licence: String,
    /// Files that it is made of.
    pub files: Vec<RemoteFile>,
    /// The command to run next, with `DIR` for the folder.
    pub next: String,
}

impl DataSet {
    /// Bytes to download, as far as they are known.
    pub fn bytes(&self) -> u64 {
        self.files.iter().filter_map(|file| file.bytes).sum()
    }
}

/// A file to download.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteFile {
    /// Name on disk.
    #[serde(skip_deserializing)]
    pub name: String,
    /// Where it lies.
    pub url: String,
    /// Its size in bytes, where it is known.
    pub bytes: Option<u64>,
    /// In lower-case hexadecimal digits, as `md5`.
    pub sha256: Option<String>,
    /// Its MD5 checksum in hexadecimal, where the publisher gives that alone.
    pub md5: Option<String>,
    /// What it is, and how it is unpacked.
    #[serde(default)]
    pub kind: Kind,
    /// Files and folders that unpacking leaves in the folder of the data set; nothing for a file that is kept as it is.
    #[serde(default)]
    pub gives: Vec<String>,
}

impl RemoteFile {
    /// What is in the folder of the data set at the end.
    pub(crate) fn results(&self) -> &[String] {
        if self.gives.is_empty() { std::slice::from_ref(&self.name) } else { &self.gives }
    }
}

/// What becomes of a downloaded file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// It is kept as it is.
    #[default]
    Plain,
    /// A compressed tar archive of one folder, whose content is wanted.
    TarGz,
    /// A zip archive.
    Zip,
    /// A zip archive of one folder, whose content is wanted.
    ZipFolder,
    /// A compressed tar archive of CIFAR-10's binary records, which become `train/CLASS/*.png` and `val/CLASS/*.png`.
    Cifar10,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    sets: Vec<Row>,
    files: BTreeMap<String, RemoteFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    about: String,
    licence: String,
    files: Vec<String>,
    next: String,
}

/// The data sets that are known by name.
pub fn data_sets() -> Vec<DataSet> {
    parse(include_str!("sets.toml")).expect("the table is well formed")
}

/// Data sets of a TOML file of the same form as the table of [`data_sets`].
///
/// # Errors
/// [`FetchError::Io`] if the file cannot be read, [`FetchError::Table`] if it is not of that form.
pub fn read_data_sets(path: &Path) -> Result<Vec<DataSet>, FetchError> {
    let text = fs::read_to_string(path).map_err(io_error(path, "read the file"))?;
    parse(&text).map_err(|problem| FetchError::Table { path: path.to_owned(), problem })
}

fn parse(text: &str) -> Result<Vec<DataSet>, String> {
    let table: Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let is_name = |name: &str| Path::new(name).file_name().is_some_and(|last| last == name);
    let file = |name: String| {
        let found = table.files.get(&name).ok_or(format!("`files` lacks `{name}`"))?.clone();
        if let Some(bad) = found.gives.iter().chain([&name]).find(|name| !is_name(name)) {
            return Err(format!("`{bad}` is not the name of a file or folder"));
        }
        if (found.kind == Kind::Plain) != found.gives.is_empty() {
            return Err(format!("`{name}` must have `gives` if, and only if, it is an archive"));
        }
        Ok(RemoteFile { name, ..found })
    };
    let set = |Row { name, about, licence, files, next }: Row| {
        let files = files.into_iter().map(&file).collect::<Result<_, String>>()?;
        Ok(DataSet { name, about, licence, files, next })
    };
    table.sets.into_iter().map(set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        let sets = data_sets();
        assert!(sets.len() >= 9);
        for set in &sets {
            assert!(set.next.starts_with("bessemer ") && set.next.contains("DIR"), "{}", set.name);
            for file in &set.files {
                let is_hex = |digits: &String| digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                assert!(file.sha256.iter().all(|digits| digits.len() == 64 && is_hex(digits)), "{}", file.name);
                assert!(file.md5.iter().all(|digits| digits.len() == 32 && is_hex(digits)), "{}", file.name);
                assert!(file.url.ends_with(&format!("/{}", file.name)), "{}", file.name);
            }
        }
    }

    #[test]
    fn tables_of_others_are_checked() {
        let table = |file: &str| {
            let set = r#"sets = [{ name = "a", about = "", licence = "", files = ["a.zip"], next = "" }]"#;
            parse(&format!("{set}\n{file}")).unwrap_err()
        };
        assert!(table("[files]").contains("lacks `a.zip`"));
        assert!(table("[files.'a.zip']\nurl = 'x'\nkind = 'zip'").contains("must have `gives`"));
        assert!(table("[files.'a.zip']\nurl = 'x'\nkind = 'zip'\ngives = ['../x']").contains("`../x`"));
        assert!(table("[files.'a.zip']\nuri = 'x'").contains("uri"));
    }
}
