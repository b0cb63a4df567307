//! From TOML and the command line to recipes, and back.

use super::section::{Elsewhere, Known, Reader, Section, Writer, refuse_unknown};
use super::{OptimizerRecipe, Recipe, builtin, check};
use crate::names::closest;
use crate::tasks::family::Family;
use crate::tasks::registry;
use bessemer_data::{DataError, plain_message, read_text};
use std::collections::BTreeSet;
use std::path::Path;
use std::str::FromStr;
use toml::{Table, Value};

/// `(path, problem)` of a field.
pub type Problem = (String, String);

/// Why there is no recipe.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    #[error("recipe {origin} is for {own}; {model} is one of the {chosen}")]
    Family { origin: String, own: &'static str, model: String, chosen: &'static str },
    #[error("no recipe `{name}`{hint}: it is neither a file nor one of {known}")]
    Unknown { name: String, hint: String, known: String },
    #[error("recipe {0}")]
    Read(#[from] DataError),
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
    /// Sets the field at `path`, such as `schedule.base_lr`, to `value`.
    pub fn new(path: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { path: path.into(), value: Some(value.into()) }
    }

    /// Whether it says how large a step is.
    pub fn is_of_step(&self) -> bool {
        ["train.batch_size", "train.accumulation"].contains(&self.path.as_str())
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
pub(super) const ALTERNATIVES: [(&str, &str); 4] = [
    ("train.epochs", "train.steps"),
    ("eval.every_epochs", "eval.every_steps"),
    ("checkpoint.every_epochs", "checkpoint.every_steps"),
    ("start.weights", "start.init_from"),
];

/// The model that a recipe names.
fn model_of(table: &Table) -> Option<&str> {
    table.get("model")?.get("name")?.as_str()
}

/// The family of that model, if the zoo has it.
fn family_of(table: &Table) -> Option<&'static dyn Family> {
    Some(registry::find(model_of(table)?).ok()?.family())
}

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
        let text = read_text(Path::new(name_or_path))?;
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

    /// The recipe as TOML without the fields that say where things lie on the machine of the run.
    pub(crate) fn to_portable_toml(&self) -> String {
        let Writer { mut table, places, .. } = self.written();
        for (section, field) in places {
            if let Some(Value::Table(section)) = table.get_mut(section) {
                section.remove(field);
            }
        }
        table.retain(|_, value| !matches!(value, Value::Table(section) if section.is_empty()));
        toml::to_string(&table).expect("every field of a recipe has a TOML form")
    }

    /// The whole recipe.
    pub fn to_table(&self) -> Table {
        self.written().table
    }

    /// Paths of the fields that change nothing of what a run computes.
    pub(crate) fn free_fields(&self) -> BTreeSet<String> {
        self.written().free
    }

    fn written(&self) -> Writer {
        let mut writer = Writer::default();
        writer.table.insert(NAME.to_owned(), self.name.clone().into());
        writer.table.insert(DESCRIPTION.to_owned(), self.description.clone().into());
        writer.put("model", &self.model);
        writer.put("data", &self.data);
        writer.put("train", &self.train);
        self.optimizer.write(&mut writer);
        writer.put("schedule", &self.schedule);
        writer.put("precision", &self.precision);
        writer.put("eval", &self.eval);
        writer.put("checkpoint", &self.checkpoint);
        writer.put("loader", &self.loader);
        writer.put("start", &self.start);
        self.own.write(&mut writer);
        writer.table = in_order(writer.table);
        writer
    }

    /// The fields that all recipes have, but for those of the optimizer.
    fn fields() -> Known {
        vec![
            ("model", super::ModelRecipe::FIELDS),
            ("data", super::DataRecipe::FIELDS),
            ("train", super::TrainRecipe::FIELDS),
            ("schedule", super::ScheduleRecipe::FIELDS),
            ("precision", super::PrecisionRecipe::FIELDS),
            ("eval", super::EvalRecipe::FIELDS),
            ("checkpoint", super::CheckpointRecipe::FIELDS),
            ("loader", super::LoaderRecipe::FIELDS),
            ("start", super::StartRecipe::FIELDS),
        ]
    }

    fn from_table(mut table: Table, origin: &str, overrides: &[Override]) -> Result<Self, RecipeError> {
        let own = family_of(&table);
        for item in overrides {
            apply(&mut table, item)?;
        }
        if let (Some(own), Some(chosen)) = (own, family_of(&table))
            && own.noun() != chosen.noun()
        {
            let (origin, own, chosen) = (origin.to_owned(), own.noun(), chosen.noun());
            return Err(RecipeError::Family {
                origin,
                own,
                model: model_of(&table).unwrap_or_default().to_owned(),
                chosen,
            });
        }
        let field = |(path, problem)| RecipeError::Field { origin: origin.to_owned(), path, problem };
        Self::read(table).map_err(field)
    }

    fn read(mut table: Table) -> Result<Self, Problem> {
        let mut text = |name: &str| match table.remove(name) {
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err((name.to_owned(), format!("invalid type: {}, expected a string", other.type_str()))),
            None => Ok(None),
        };
        let name = text(NAME)?.ok_or_else(|| (NAME.to_owned(), "missing field `name`".to_owned()))?;
        let description = text(DESCRIPTION)?.unwrap_or_default();
        let given = table.get("model").and_then(|model| model.get("name")).and_then(Value::as_str);
        let Some(given) = given else {
            Reader::new(table).take::<super::ModelRecipe>("model")?;
            unreachable!("a model's name is text");
        };
        let model = registry::find(given).map_err(|error| {
            let hint = suggestion(given, registry::all().map(|known| known.name()));
            ("model.name".to_owned(), format!("{error}{hint}"))
        })?;
        let part = model.family().recipe();
        let rule = OptimizerRecipe::fields(table.get("optimizer").and_then(|optimizer| optimizer.get("kind")));
        let known = Self::fields().into_iter().chain(rule).chain((part.fields)()).collect();
        refuse_unknown(&table, &known, elsewhere)?;
        let mut reader = Reader::new(table);
        let mut recipe = Self {
            name,
            description,
            model: super::ModelRecipe { name: model.name().to_owned() },
            data: reader.take("data")?,
            own: (part.read)(&mut reader)?,
            train: reader.take("train")?,
            optimizer: OptimizerRecipe::read(&mut reader)?,
            schedule: reader.take("schedule")?,
            precision: reader.take("precision")?,
            eval: reader.take("eval")?,
            checkpoint: reader.take("checkpoint")?,
            loader: reader.take("loader")?,
            start: reader.take("start")?,
        };
        check::combinations(&recipe)?;
        recipe.own.check(&recipe)?;
        recipe.schedule.resolve_form();
        recipe.precision.resolve();
        Ok(recipe)
    }
}

/// Sections before those that a family alone has.
const HEAD: [&str; 4] = [NAME, DESCRIPTION, "model", "data"];
/// Sections behind them.
const TAIL: [&str; 8] = ["train", "optimizer", "schedule", "precision", "eval", "checkpoint", "loader", "start"];

fn in_order(mut table: Table) -> Table {
    let names: Vec<String> = table.keys().cloned().collect();
    let own = names.iter().map(String::as_str).filter(|name| !HEAD.contains(name) && !TAIL.contains(name));
    let order: Vec<&str> = HEAD.into_iter().chain(own).chain(TAIL).collect();
    order.into_iter().filter_map(|name| Some((name.to_owned(), table.remove(name)?))).collect()
}

pub(super) const NAME: &str = "name";
pub(super) const DESCRIPTION: &str = "description";

/// Fields that other families, or other optimizers, have.
fn elsewhere() -> Elsewhere {
    let families = registry::FAMILIES.iter().flat_map(|family| {
        let owner = format!("recipes for {}", family.noun());
        (family.recipe().fields)().into_iter().map(move |(section, fields)| (section, fields, owner.clone()))
    });
    let optimizers =
        OptimizerRecipe::fields_by_rule().map(|(section, fields, owner)| (section, fields, owner.to_owned()));
    families.chain(optimizers).collect()
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
pub(super) fn explain(error: &serde_path_to_error::Error<toml::de::Error>) -> (String, String) {
    let message = error.inner().message();
    // Serde's wording: unknown field `a`, expected one of `b`, `c`.
    let mut quoted = message.split('`').skip(1).step_by(2);
    let hint = match quoted.next() {
        Some(unknown) if message.starts_with("unknown") => suggestion(unknown, quoted),
        _ => String::new(),
    };
    (error.path().to_string(), format!("{}{hint}", plain_message(message)))
}

/// `" (did you mean ...?)"` if a known name is close.
pub(super) fn suggestion<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    closest(name, known).map_or_else(String::new, |closest| format!(" (did you mean `{closest}`?)"))
}
