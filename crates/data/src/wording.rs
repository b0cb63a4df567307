//! What readers of JSON and TOML say of a value, in words that do not name types of this program.

/// What a reader expects, by the names of types, and in plain words.
const TYPES: [(&str, &str); 19] = [
    ("u8", "a whole number of 0 to 255"),
    ("u16", "a whole number of 0 to 65535"),
    ("u32", "a whole number of 0 to 4294967295"),
    ("u64", WHOLE),
    ("usize", WHOLE),
    ("u128", WHOLE),
    ("i8", "a whole number of -128 to 127"),
    ("i16", "a whole number of -32768 to 32767"),
    ("i32", "a whole number of -2147483648 to 2147483647"),
    ("i64", "a whole number"),
    ("isize", "a whole number"),
    ("i128", "a whole number"),
    ("f32", "a number"),
    ("f64", "a number"),
    ("bool", "true or false"),
    ("a boolean", "true or false"),
    ("a sequence", "a list"),
    ("a map", FIELDS),
    ("borrowed string", "a string"),
];
const WHOLE: &str = "a whole number, 0 or more";
const FIELDS: &str = "fields with names";

/// A message of serde with plain words behind `expected`: `a whole number, 0 or more` for `u64`.
pub fn plain_message(message: &str) -> String {
    const EXPECTED: &str = ", expected ";
    let Some((found, expected)) = message.rsplit_once(EXPECTED) else { return message.to_owned() };
    // A message about JSON goes on with the line.
    let (what, place) = expected.split_at(expected.find(" at line ").unwrap_or(expected.len()));
    let known = TYPES.iter().find(|(name, _)| *name == what).map(|(_, words)| *words);
    let words = known.unwrap_or(if what.starts_with("struct ") { FIELDS } else { what });
    format!("{found}{EXPECTED}{words}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_told_in_words() {
        for (message, expected) in [
            (
                "invalid type: string \"four\", expected u64",
                "invalid type: string \"four\", expected a whole number, 0 or more",
            ),
            ("invalid type: string \"a\", expected f64", "invalid type: string \"a\", expected a number"),
            ("invalid type: integer `1`, expected a boolean", "invalid type: integer `1`, expected true or false"),
            (
                "invalid value: integer `-1`, expected u32 at line 3 column 8",
                "invalid value: integer `-1`, expected a whole number of 0 to 4294967295 at line 3 column 8",
            ),
            (
                "invalid type: map, expected a sequence at line 1 column 0",
                "invalid type: map, expected a list at line 1 column 0",
            ),
            ("invalid type: null, expected struct Box", "invalid type: null, expected fields with names"),
            // What names no type stays.
            (
                "unknown field `u64`, expected one of `f64`, `bool`",
                "unknown field `u64`, expected one of `f64`, `bool`",
            ),
            ("invalid length 3, expected an array of length 4", "invalid length 3, expected an array of length 4"),
            ("missing field `bool`", "missing field `bool`"),
        ] {
            assert_eq!(plain_message(message), expected);
        }
    }

    #[test]
    fn readers_name_the_types_that_are_known_here() {
        let said = |error: serde_json::Error| plain_message(&error.to_string());
        let of = |text: &str| said(serde_json::from_str::<(u64, f64, bool, u8)>(text).unwrap_err());
        assert!(of("[\"a\", 1, true, 1]").contains("expected a whole number, 0 or more at line 1"));
        assert!(of("[1, \"a\", true, 1]").contains("expected a number at line 1"));
        assert!(of("[1, 1, 1, 1]").contains("expected true or false at line 1"));
        assert!(of("[1, 1, true, 256]").contains("expected a whole number of 0 to 255 at line 1"));
    }
}
