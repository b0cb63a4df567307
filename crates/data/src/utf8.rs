//! Text files: UTF-8, with or without the byte order mark that some programs put before it.

use std::fs;
use std::path::Path;

use crate::{DataError, FilePosition};

const MARK: &[u8] = b"\xEF\xBB\xBF";
/// Byte order marks of UTF-16.
const OTHER_MARKS: [&[u8]; 2] = [b"\xFF\xFE", b"\xFE\xFF"];

/// Reads a text file.
///
/// # Errors
/// A file that cannot be read or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, DataError> {
    let bytes = fs::read(path).map_err(DataError::io(path, "read the file"))?;
    text_of(path, &bytes, "text in UTF-8").map(str::to_owned)
}

/// The text in the content of a file.
///
/// # Errors
/// What is not UTF-8, with its line.
pub(crate) fn text_of<'a>(path: &Path, bytes: &'a [u8], expected: &str) -> Result<&'a str, DataError> {
    let bytes = without_mark(path, bytes, expected)?;
    std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
        DataError::content(path, FilePosition::Line(line), "the line is not UTF-8", expected)
    })
}

/// The content of a text file behind its byte order mark.
///
/// # Errors
/// A file in UTF-16.
pub(crate) fn without_mark<'a>(path: &Path, bytes: &'a [u8], expected: &str) -> Result<&'a [u8], DataError> {
    if OTHER_MARKS.iter().any(|mark| bytes.starts_with(mark)) {
        return Err(DataError::layout(path, "the file is in UTF-16, not in UTF-8", expected));
    }
    Ok(bytes.strip_prefix(MARK).unwrap_or(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_passed_over_and_utf_16_is_named() {
        let read = |bytes: &'static [u8]| text_of(Path::new("f"), bytes, "words").map_err(|error| error.to_string());
        assert_eq!(read(b"\xEF\xBB\xBFa\n"), Ok("a\n"));
        assert_eq!(read(b"a\n"), Ok("a\n"));
        assert_eq!(read(b"\xFF\xFEa\0"), Err("f: the file is in UTF-16, not in UTF-8; expected words".to_owned()));
        assert_eq!(read(b"a\nb\xE4"), Err("f: line 2: the line is not UTF-8; expected words".to_owned()));
    }
}
