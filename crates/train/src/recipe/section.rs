//! Sections of recipes: fields that are declared once, with their default and their range.

use super::parse::{DESCRIPTION, NAME, Problem, explain, suggestion};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fmt;
use toml::{Table, Value};

/// A field of a section.
#[derive(Debug)]
pub struct Field {
    /// Its name in files.
    pub name: &'static str,
    /// The value where none is given; without one the field must be given, or may be absent if it is an `Option`.
    pub default: Option<fn() -> Value>,
    /// What its number, or each number of its array, may be.
    pub range: Option<Range>,
    /// What it means for a run.
    pub meaning: Meaning,
}

/// What a field means for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// It decides what a run computes: a resumed run keeps it.
    Computed,
    /// It has no influence on what a run computes, so that a resumed run may change it.
    Free,
    /// Free, and says where something lies on the machine of the run. How data are read may depend on whether it is given.
    Place,
}

/// Fields that are read and written together; several of them may make up one section of a file.
pub trait Section: Serialize + DeserializeOwned {
    /// In the order in which they are written.
    const FIELDS: &'static [Field];
}

/// Declares a [`Section`]: `pub NAME: TYPE = DEFAULT => RANGE, free;`, where everything behind the type may be left out, and `place` may stand for `free`.
macro_rules! section {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$doc:meta])* pub $field:ident: $ty:ty $(= $default:expr)? $(=> $range:expr)? $(, $meaning:ident)?;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        $vis struct $name {
            $($(#[$doc])* pub $field: $ty,)*
        }

        impl $crate::recipe::Section for $name {
            const FIELDS: &'static [$crate::recipe::Field] = &[$($crate::recipe::Field {
                name: stringify!($field),
                default: section!(@default $ty $(, $default)?),
                range: section!(@range $($range)?),
                meaning: section!(@meaning $($meaning)?),
            },)*];
        }
    };
    (@default $ty:ty) => { None };
    (@default $ty:ty, $default:expr) => { Some(|| $crate::recipe::to_value::<$ty>(&$default)) };
    (@range) => { None };
    (@range $range:expr) => { Some($range) };
    (@meaning) => { $crate::recipe::Meaning::Computed };
    (@meaning free) => { $crate::recipe::Meaning::Free };
    (@meaning place) => { $crate::recipe::Meaning::Place };
}
pub(crate) use section;

/// The TOML form of a default.
///
/// # Panics
/// For a type that has none.
pub fn to_value<T: Serialize>(value: &T) -> Value {
    Value::try_from(value).expect("a default has a TOML form")
}

/// What a number may be.
#[derive(Debug)]
pub struct Range {
    low: f64,
    high: f64,
    low_excluded: bool,
    high_excluded: bool,
}

impl Range {
    /// `low <= x <= high`
    pub const fn closed(low: f64, high: f64) -> Self {
        Self { low, high, low_excluded: false, high_excluded: false }
    }

    /// `low < x <= high`
    pub const fn above(low: f64, high: f64) -> Self {
        Self { low_excluded: true, ..Self::closed(low, high) }
    }

    /// `low <= x < high`
    pub const fn below(low: f64, high: f64) -> Self {
        Self { high_excluded: true, ..Self::closed(low, high) }
    }

    /// `low < x < high`
    pub const fn between(low: f64, high: f64) -> Self {
        Self { low_excluded: true, high_excluded: true, ..Self::closed(low, high) }
    }

    fn contains(&self, value: f64) -> bool {
        let above = if self.low_excluded { value > self.low } else { value >= self.low };
        let below = if self.high_excluded { value < self.high } else { value <= self.high };
        above && below
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let above = if self.low_excluded { "above " } else { "" };
        let below = if self.high_excluded { "below " } else { "" };
        write!(f, "{above}{} to {below}{}", self.low, self.high)
    }
}

/// All numbers of a value.
pub(super) fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Integer(integer) => vec![*integer as f64],
        Value::Float(float) => vec![*float],
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}

/// Sections with fields that they may have; a section may be there several times.
pub(super) type Known = Vec<(&'static str, &'static [Field])>;

/// Fields of other recipes, for messages: the section, its fields, and whose they are.
pub(super) type Elsewhere = Vec<(&'static str, &'static [Field], String)>;

/// Refuses sections and fields that are not known; `elsewhere` says whose they may be.
pub(super) fn refuse_unknown(
    table: &Table,
    known: &Known,
    elsewhere: impl FnOnce() -> Elsewhere,
) -> Result<(), Problem> {
    let names_in = |section: &str| -> Vec<&'static str> {
        known.iter().filter(|(name, _)| *name == section).flat_map(|(_, fields)| names(fields)).collect()
    };
    let unknown = table.iter().find_map(|(section, value)| match (names_in(section), value) {
        (fields, _) if fields.is_empty() => Some((section, None)),
        (fields, Value::Table(given)) => {
            given.keys().find(|field| !fields.contains(&field.as_str())).map(|field| (section, Some(field)))
        }
        _ => None,
    });
    let Some((section, field)) = unknown else { return Ok(()) };
    let (path, unknown, allowed) = match field {
        Some(field) => (format!("{section}.{field}"), field, names_in(section)),
        None => (section.clone(), section, sections(known)),
    };
    let is_meant = |(name, fields, _): &(&str, &'static [Field], String)| {
        name == section && field.is_none_or(|field| names(fields).any(|name| name == field))
    };
    let owners: BTreeSet<String> = elsewhere().into_iter().filter(is_meant).map(|(_, _, owner)| owner).collect();
    let hint = match owners.is_empty() {
        true => suggestion(unknown, allowed.iter().copied()),
        false => format!(" (it is of {})", owners.into_iter().collect::<Vec<_>>().join(", ")),
    };
    let expected = allowed.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    Err((path, format!("unknown field `{unknown}`{hint}, expected one of {expected}")))
}

/// What may stand at the top of a recipe.
fn sections(known: &Known) -> Vec<&'static str> {
    let mut sections = vec![NAME, DESCRIPTION];
    for (section, _) in known {
        if !sections.contains(section) {
            sections.push(section);
        }
    }
    sections
}

fn names(fields: &'static [Field]) -> impl Iterator<Item = &'static str> {
    fields.iter().map(|field| field.name)
}

/// A recipe that is being read.
#[derive(Debug)]
pub struct Reader {
    table: Table,
}

impl Reader {
    /// Of a table whose values are sections.
    pub(super) fn new(table: Table) -> Self {
        Self { table }
    }

    /// Reads the fields of `T` in a section.
    ///
    /// # Errors
    /// A field that is missing, of another type or out of its range.
    pub fn take<T: Section>(&mut self, section: &'static str) -> Result<T, Problem> {
        let mut nothing = Table::new();
        let given = match self.table.get_mut(section) {
            None => &mut nothing,
            Some(Value::Table(given)) => given,
            Some(other) => {
                let problem = format!("invalid type: {}, expected a section", other.type_str());
                return Err((section.to_owned(), problem));
            }
        };
        let mut own = Table::new();
        for field in T::FIELDS {
            let value = given.remove(field.name);
            if let (Some(range), Some(value)) = (&field.range, &value)
                && numbers(value).into_iter().any(|number| !range.contains(number))
            {
                let path = format!("{section}.{}", field.name);
                return Err((path, format!("{value} is not allowed; the range is {range}")));
            }
            if let Some(value) = value.or_else(|| Some(field.default?())) {
                own.insert(field.name.to_owned(), value);
            }
        }
        serde_path_to_error::deserialize(own).map_err(|error| {
            let (path, problem) = explain(&error);
            let path = if path == "." { section.to_owned() } else { format!("{section}.{path}") };
            (path, problem)
        })
    }
}

/// A recipe that is being written.
#[derive(Debug, Default)]
pub struct Writer {
    pub(super) table: Table,
    /// Paths of fields that change nothing of what a run computes.
    pub(super) free: BTreeSet<String>,
    /// Sections and names of those of them that are places.
    pub(super) places: Vec<(&'static str, &'static str)>,
}

impl Writer {
    /// Adds fields to a section, which is left out as long as it has none.
    pub fn put<T: Section>(&mut self, section: &'static str, fields: &T) {
        let Value::Table(fields) = to_value(fields) else { unreachable!("sections are tables") };
        let free = T::FIELDS.iter().filter(|field| field.meaning != Meaning::Computed);
        self.free.extend(free.map(|field| format!("{section}.{}", field.name)));
        let places = T::FIELDS.iter().filter(|field| field.meaning == Meaning::Place);
        self.places.extend(places.map(|field| (section, field.name)));
        if fields.is_empty() {
            return;
        }
        let entry = self.table.entry(section).or_insert_with(|| Value::Table(Table::new()));
        entry.as_table_mut().expect("sections are tables").extend(fields);
    }
}

/// The fields of a section as they are where nothing is given.
///
/// # Panics
/// For a section with a field that must be given.
pub fn defaults<T: Section>() -> T {
    let empty = Reader::new(Table::new()).take("defaults");
    empty.unwrap_or_else(|(field, problem)| panic!("{field}: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    section! {
        struct Fields {
            pub count: u64 = 3 => Range::closed(1.0, 9.0);
            pub name: String;
            pub share: Option<f64> => Range::between(0.0, 1.0), free;
        }
    }

    fn read(text: &str) -> Result<Fields, Problem> {
        let table: Table = text.parse().unwrap();
        refuse_unknown(&table, &vec![("own", Fields::FIELDS)], || {
            vec![("theirs", Fields::FIELDS, "others".to_owned())]
        })?;
        Reader::new(table).take("own")
    }

    fn error(text: &str) -> String {
        let (path, problem) = read(text).unwrap_err();
        format!("{path}: {problem}")
    }

    #[test]
    fn what_is_left_out_takes_the_default() {
        let fields = read("[own]\nname = 'a'").unwrap();
        assert_eq!(fields, Fields { count: 3, name: "a".to_owned(), share: None });
        let mut writer = Writer::default();
        writer.put("own", &fields);
        assert_eq!(writer.table.to_string(), "[own]\ncount = 3\nname = \"a\"\n");
        assert_eq!(writer.free.into_iter().collect::<Vec<_>>(), ["own.share"]);
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(error("[own]\ncount = 10\nname = 'a'"), "own.count: 10 is not allowed; the range is 1 to 9");
        assert_eq!(
            error("[own]\nname = 'a'\nshare = 1.0"),
            "own.share: 1.0 is not allowed; the range is above 0 to below 1"
        );
        assert_eq!(error("[own]\nname = 1"), "own.name: invalid type: integer `1`, expected a string");
        assert_eq!(error("[own]\ncount = 1"), "own: missing field `name`");
        assert!(
            error("[own]\nnaem = 'a'").starts_with("own.naem: unknown field `naem` (did you mean `name`?), expected")
        );
        assert_eq!(
            error("[onw]\nname = 'a'"),
            "onw: unknown field `onw` (did you mean `own`?), expected one of `name`, `description`, `own`"
        );
        assert!(
            error("[theirs]\nname = 'a'").starts_with("theirs: unknown field `theirs` (it is of others), expected")
        );
        assert_eq!(error("own = 3"), "own: invalid type: integer, expected a section");
        let unknown =
            "own.conut: unknown field `conut` (did you mean `count`?), expected one of `count`, `name`, `share`";
        assert_eq!(error("[own]\nname = 'a'\nconut = 1"), unknown);
        assert!(
            error("[own]\nname = 'a'\n[zzzzzzzz]").starts_with("zzzzzzzz: unknown field `zzzzzzzz`, expected one of")
        );
    }
}
