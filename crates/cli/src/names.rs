//! Hints at names that are mistyped.

use bessemer_train::names::closest;

/// `"; did you mean ...?"` if a known name is close, else nothing.
pub(crate) fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    closest(name, known).map_or_else(String::new, |closest| format!("; did you mean `{closest}`?"))
}
