//! JSON files into types, with errors that say what is wrong and where.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::DataError;

/// Reads the content of a JSON file.
///
/// # Errors
///
/// What is not JSON, with its line and column; what has another form, with its path such as `data[3].title`.
pub(crate) fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8], expected: &str) -> Result<T, DataError> {
    // Paths are kept in mind only when there is an error to tell: it takes about as long as the reading.
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Ok(value);
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let place = error.path().to_string();
        let error = error.into_inner();
        let problem = match (error.is_data(), place.as_str()) {
            (false, _) => syntax(bytes, &error),
            (true, ".") => error.to_string(),
            (true, place) => format!("{place}: {error}"),
        };
        DataError::layout(path, problem, expected)
    })?;
    json.end().map_err(|error| DataError::layout(path, syntax(bytes, &error), expected))?;
    Ok(value)
}

/// What is not JSON; numbers that are not finite, which some programs write, by their names.
fn syntax(bytes: &[u8], error: &serde_json::Error) -> String {
    let line = bytes.split(|&byte| byte == b'\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    let start = error.column().saturating_sub(1);
    let names = ["NaN", "Infinity", "-Infinity"];
    let found = names.into_iter().find(|name| {
        // The column is that of the first letter, or of the second one after a minus.
        let at = |start: usize| line.get(start..).is_some_and(|rest| rest.starts_with(name.as_bytes()));
        at(start) || (start > 0 && name.starts_with('-') && at(start - 1))
    });
    match found {
        Some(name) => format!("not JSON: {name} at line {} column {}", error.line(), error.column()),
        None => format!("not JSON: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_where() {
        let read =
            |text: &str| parse::<Vec<f64>>(Path::new("f.json"), text.as_bytes(), "numbers").unwrap_err().to_string();
        assert_eq!(read("[1,\n 2, x]"), "f.json: not JSON: expected value at line 2 column 5; expected numbers");
        assert_eq!(
            read("[1, true]"),
            "f.json: [1]: invalid type: boolean `true`, expected f64 at line 1 column 8; expected numbers"
        );
        assert_eq!(read("[1] 2"), "f.json: not JSON: trailing characters at line 1 column 5; expected numbers");
        assert!(read("[1, 1e999]").contains("number out of range at line 1 column 9"));
    }

    #[test]
    fn numbers_that_are_not_finite_are_named() {
        let read =
            |text: &str| parse::<Vec<f64>>(Path::new("f.json"), text.as_bytes(), "numbers").unwrap_err().to_string();
        assert_eq!(read("[1, NaN]"), "f.json: not JSON: NaN at line 1 column 5; expected numbers");
        assert_eq!(read("[\nInfinity]"), "f.json: not JSON: Infinity at line 2 column 1; expected numbers");
        assert!(read("[0, -Infinity]").contains("not JSON: -Infinity at line 1 column"));
    }
}
