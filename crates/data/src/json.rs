//! Reading of JSON files into types, with errors that say what is wrong and where.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::DataError;
use crate::utf8::without_mark;
use crate::wording::plain_message;

/// Reads the content of a JSON file.
///
/// # Errors
///
/// What is not JSON, with its line and column; what has another form, with its path such as `data[3].title`.
pub(crate) fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8], expected: &str) -> Result<T, DataError> {
    let bytes = without_mark(path, bytes, expected)?;
    // Tracking paths slows reading down, so they are tracked only when a message needs one.
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Ok(value);
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let place = error.path().to_string();
        let error = error.into_inner();
        let problem = match (error.is_data(), place.as_str()) {
            (false, _) => syntax(bytes, &error),
            (true, ".") => plain_message(&error.to_string()),
            (true, place) => format!("{place}: {}", plain_message(&error.to_string())),
        };
        DataError::layout(path, problem, expected)
    })?;
    json.end().map_err(|error| DataError::layout(path, syntax(bytes, &error), expected))?;
    Ok(value)
}

/// The message of a syntax error. It names the NaN or infinity that some programs write as a number.
fn syntax(bytes: &[u8], error: &serde_json::Error) -> String {
    let line = bytes.split(|&byte| byte == b'\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    let start = error.column().saturating_sub(1);
    let names = ["NaN", "-Infinity", "Infinity"];
    let found = names.into_iter().find(|name| {
        // The parser stops at the first letter, which may follow a minus sign.
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
            "f.json: [1]: invalid type: boolean `true`, expected a number at line 1 column 8; expected numbers"
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
