//! The recipes that the program carries.

use crate::tasks::registry;

/// Names of the recipes that the program carries.
pub fn builtin_names() -> impl Iterator<Item = &'static str> {
    registry::recipes().map(|(name, _)| name)
}

pub(super) fn text(name: &str) -> Option<&'static str> {
    registry::recipes().find(|(known, _)| *known == name).map(|(_, text)| text)
}
