use super::{Recipe, builtin, check, owned};
use std::path::Path;
use std::str::FromStr;
use toml::{Table, Value};

#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    #[error("no recipe `{name}`{hint}: it is neither a file nor one of {known}")]
    Unknown { name: String, hint: String, known: String },
    #[error("recipe {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("recipe {origin}: {source}")]
    Syntax { origin: String, source: Box<toml::de::Error> },
    #[error("`{text}` is not of the form section.field=value")]
    Override { text: String },
    #[error("recipe {origin}: {path}: {problem}")]
    Field { origin: String, path: String, problem: String },
}

/// A field given on the command line: `schedule.base_lr=0.1`.
///
/// Values are TOML; what is not valid TOML is text, so that words need no quotes. An empty value returns the field to
/// its default.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    path: String,
    value: Option<Value>,
}

impl Override {
    pub fn new(path: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { path: path.into(), value: Some(value.into()) }
    }
}

impl FromStr for Override {
    type Err = RecipeError;

    fn from_str(text: &str) -> Result<Self, RecipeError> {
        let malformed = || RecipeError::Override { text: text.to_owned() };
        let (path, value) = text.split_once('=').ok_or_else(malformed)?;
        let (path, value) = (path.trim(), value.trim());
        if path.is_empty() || path.split('.').any(str::is_empty) {
            return Err(malformed());
        }
        let value = (!value.is_empty()).then(|| value.parse().unwrap_or_else(|_| Value::String(value.to_owned())));
        Ok(Self { path: path.to_owned(), value })
    }
}

/// Fields of which one replaces the other.
pub(super) const ALTERNATIVES: [(&str, &str); 3] = [
    ("train.epochs", "train.steps"),
    ("eval.every_epochs", "eval.every_steps"),
    ("checkpoint.every_epochs", "checkpoint.every_steps"),
];

impl Recipe {
    /// A recipe file, or a built-in recipe by name, with `overrides` applied in order.
    ///
    /// # Errors
    /// One message with the field, its value and what is allowed; a name that is not known comes with the closest one.
    pub fn load(name_or_path: &str, overrides: &[Override]) -> Result<Self, RecipeError> {
        if let Some(text) = builtin::text(name_or_path) {
            return Self::from_toml(text, name_or_path, overrides);
        }
        if !Path::new(name_or_path).exists() {
            let hint = suggestion(name_or_path, builtin::builtin_names());
            let known = builtin::builtin_names().collect::<Vec<_>>().join(", ");
            return Err(RecipeError::Unknown { name: name_or_path.to_owned(), hint, known });
        }
        let text = std::fs::read_to_string(name_or_path)
            .map_err(|source| RecipeError::Read { path: name_or_path.to_owned(), source })?;
        Self::from_toml(&text, name_or_path, overrides)
    }

    /// A recipe from TOML text; `origin` names it in errors.
    ///
    /// # Errors
    /// As [`Recipe::load`].
    pub fn from_toml(text: &str, origin: &str, overrides: &[Override]) -> Result<Self, RecipeError> {
        let syntax = |source| RecipeError::Syntax { origin: origin.to_owned(), source: Box::new(source) };
        let table = text.parse::<Table>().map_err(syntax)?;
        Self::from_table(table, origin, overrides)
    }

    /// This recipe with `overrides` applied in order.
    ///
    /// # Errors
    /// As [`Recipe::load`].
    pub fn with_overrides(&self, overrides: &[Override]) -> Result<Self, RecipeError> {
        Self::from_toml(&self.to_toml(), &self.name, overrides)
    }

    /// The whole recipe as TOML; reading it back gives an equal recipe.
    pub fn to_toml(&self) -> String {
        toml::to_string(&self.to_table()).expect("every field of a recipe has a TOML form")
    }

    /// The whole recipe, without fields that are not its own.
    pub fn to_table(&self) -> Table {
        let mut table = Table::try_from(self).expect("every field of a recipe has a TOML form");
        owned::strip(&mut table);
        table
    }

    fn from_table(mut table: Table, origin: &str, overrides: &[Override]) -> Result<Self, RecipeError> {
        for item in overrides {
            apply(&mut table, item)?;
        }
        let field = |(path, problem)| RecipeError::Field { origin: origin.to_owned(), path, problem };
        owned::check(&table).map_err(field)?;
        check::ranges(&table).map_err(field)?;
        let mut recipe: Self = serde_path_to_error::deserialize(table).map_err(|error| field(explain(&error)))?;
        check::combinations(&recipe).map_err(field)?;
        recipe.model.init.get_or_insert(check::initial_weights(&recipe.model.name)[0]);
        recipe.precision.resolve();
        Ok(recipe)
    }
}

/// The value at a dotted path.
pub(super) fn lookup<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    let (section, field) = path.split_once('.')?;
    table.get(section)?.as_table()?.get(field)
}

fn apply(table: &mut Table, item: &Override) -> Result<(), RecipeError> {
    set(table, &item.path, item.value.clone())?;
    for (one, other) in ALTERNATIVES {
        if item.path == one {
            set(table, other, None)?;
        } else if item.path == other {
            set(table, one, None)?;
        }
    }
    Ok(())
}

fn set(table: &mut Table, path: &str, value: Option<Value>) -> Result<(), RecipeError> {
    let (inner, field) = match path.split_once('.') {
        None => (table, path),
        Some((section, field)) => {
            let section = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
            (section.as_table_mut().ok_or_else(|| RecipeError::Override { text: path.to_owned() })?, field)
        }
    };
    match value {
        Some(value) => inner.insert(field.to_owned(), value),
        None => inner.remove(field),
    };
    Ok(())
}

/// Path and problem of a deserialisation error, with the closest name where a name is not known.
fn explain(error: &serde_path_to_error::Error<toml::de::Error>) -> (String, String) {
    let message = error.inner().message();
    // Serde's wording: unknown field `a`, expected one of `b`, `c`.
    let mut quoted = message.split('`').skip(1).step_by(2);
    let hint = match quoted.next() {
        Some(unknown) if message.starts_with("unknown") => suggestion(unknown, quoted),
        _ => String::new(),
    };
    (error.path().to_string(), format!("{message}{hint}"))
}

/// `" (did you mean ...?)"` if a known name is close.
fn suggestion<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    known
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 3)
        .map_or_else(String::new, |(_, closest)| format!(" (did you mean `{closest}`?)"))
}
