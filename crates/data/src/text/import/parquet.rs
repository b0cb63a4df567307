//! The Parquet files of LDDL: a pair of segments a row, as tokens with blanks between them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;

use super::Ids;
use super::file::{Each, Found};
use crate::panics::caught_quietly;
use crate::text::Instance;
use crate::text::example::check_positions;
use crate::text::sequence::Sequence;
use crate::tf_example::{Flaw, flaw};
use crate::{DataError, FilePosition};

const EXPECTED: &str = "the columns A, B and is_random_next that LDDL writes, undamaged";
const FIRST: &str = "A";
const SECOND: &str = "B";
const RANDOM_NEXT: &str = "is_random_next";
const POSITIONS: &str = "masked_lm_positions";
const LABELS: &str = "masked_lm_labels";

/// Hands every pair of a file to `each`: an instance where it is masked already.
pub(super) fn each(path: &Path, ids: &Ids, each: Each) -> Result<(), DataError> {
    let error = |problem| DataError::layout(path, problem, EXPECTED);
    let file = File::open(path).map_err(DataError::io(path, "open the file"))?;
    let reader = sound(|| SerializedFileReader::new(file)).map_err(error)?;
    let columns = wanted_columns(path, reader.metadata().file_metadata().schema())?;
    let mut rows = sound(|| reader.get_row_iter(Some(columns))).map_err(error)?;
    for number in 1.. {
        let place = FilePosition::Row(number);
        let content = |flaw: Flaw| flaw.at(path, place);
        let row = sound(|| rows.next().transpose()).map_err(|problem| content(flaw(problem, EXPECTED)))?;
        let Some(row) = row else { break };
        each(place, found(&row, ids).map_err(content)?)?;
    }
    Ok(())
}

/// What the reader says, which panics at some damage.
///
/// Errors: what is wrong, in words.
fn sound<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    caught_quietly(read)?.map_err(|error| error.to_string())
}

/// Errors: a column that is missing.
fn wanted_columns(path: &Path, schema: &Type) -> Result<Type, DataError> {
    let column = |name: &str| schema.get_fields().iter().find(|column| column.name() == name).map(Arc::clone);
    let mut columns = Vec::new();
    for name in [FIRST, SECOND, RANDOM_NEXT] {
        let found = column(name);
        columns.push(found.ok_or_else(|| DataError::layout(path, format!("no column `{name}`"), EXPECTED))?);
    }
    match [column(POSITIONS), column(LABELS)] {
        [Some(positions), Some(labels)] => columns.extend([positions, labels]),
        [None, None] => {}
        _ => return Err(DataError::layout(path, format!("one of `{POSITIONS}` and `{LABELS}`"), "both or none")),
    }
    let built = Type::group_type_builder(schema.name()).with_fields(columns).build();
    built.map_err(|error| DataError::layout(path, error.to_string(), EXPECTED))
}

fn found(row: &Row, ids: &Ids) -> Result<Found, Flaw> {
    let mut fields: BTreeMap<&str, &Field> =
        row.get_column_iter().map(|(name, field)| (name.as_str(), field)).collect();
    let first = ids.of_words(text(&mut fields, FIRST)?)?;
    let second = ids.of_words(text(&mut fields, SECOND)?)?;
    let random_next = match fields.remove(RANDOM_NEXT) {
        Some(Field::Bool(random_next)) => *random_next,
        other => return Err(wrong(RANDOM_NEXT, other, "true or false")),
    };
    let specials = ids.vocabulary.specials();
    let mut sequence = Sequence::begin(specials);
    for segment in [first, second] {
        sequence.tokens.extend(segment);
        sequence.end_segment(specials);
    }
    let Some(positions) = fields.remove(POSITIONS) else { return Ok(Found::Pair { sequence, random_next }) };

    let Field::Bytes(positions) = positions else { return Err(wrong(POSITIONS, Some(positions), "bytes")) };
    let positions = numpy_u16(positions.data())?;
    let labels = ids.of_words(text(&mut fields, LABELS)?)?;
    if positions.len() != labels.len() {
        let problem = format!("{} numbers in `{POSITIONS}`, {} tokens in `{LABELS}`", positions.len(), labels.len());
        return Err(flaw(problem, "as many of both"));
    }
    let masked: Vec<(u32, u32)> = positions.into_iter().zip(labels).collect();
    let Sequence { tokens, segments } = sequence;
    check_positions(&masked, tokens.len())?;
    Ok(Found::Instance(Instance { tokens, segments, masked, random_next }))
}

fn text<'a>(fields: &mut BTreeMap<&str, &'a Field>, name: &str) -> Result<&'a str, Flaw> {
    match fields.remove(name) {
        Some(Field::Str(text)) => Ok(text),
        other => Err(wrong(name, other, "text")),
    }
}

fn wrong(name: &str, found: Option<&Field>, expected: &str) -> Flaw {
    match found {
        None | Some(Field::Null) => flaw(format!("`{name}` has no value"), expected),
        Some(_) => flaw(format!("`{name}` has values of another type"), expected),
    }
}

/// Numbers of a one-dimensional array of `uint16` that `numpy.save` wrote (its format 1.0): `\x93NUMPY`, the version, the length of the
/// header, the header as a dictionary of Python, and the elements.
fn numpy_u16(bytes: &[u8]) -> Result<Vec<u32>, Flaw> {
    let elements = || {
        let rest = bytes.strip_prefix(b"\x93NUMPY\x01\x00")?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (header, elements) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        let header = str::from_utf8(header).ok()?;
        let shape = format!("'shape': ({},)", elements.len() / 2);
        let is_whole = header.contains("'descr': '<u2'") && header.contains(&shape) && elements.len().is_multiple_of(2);
        is_whole.then_some(elements)
    };
    let elements = elements().ok_or_else(|| {
        flaw(format!("`{POSITIONS}` is no array that NumPy has saved"), "one dimension of little-endian uint16")
    })?;
    Ok(elements.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]).into()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(header: &str, elements: &[u8]) -> Vec<u8> {
        [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), elements].concat()
    }

    #[test]
    fn arrays_of_numpy_are_read_or_refused() {
        let header = "{'descr': '<u2', 'fortran_order': False, 'shape': (2,), }\n";
        assert_eq!(numpy_u16(&saved(header, &[1, 0, 2, 1])), Ok(vec![1, 258]));
        assert_eq!(numpy_u16(&saved(&header.replace("(2,)", "(0,)"), &[])), Ok(vec![]));
        for wrong in [
            saved(header, &[1, 0, 2]),
            saved(header, &[1, 0, 2, 1, 3, 0]),
            saved(&header.replace("u2", "i8"), &[1, 0, 2, 1]),
            saved(header, &[1, 0, 2, 1])[..9].to_vec(),
            b"\x93NUMPY\x02\x00".to_vec(),
            Vec::new(),
        ] {
            assert!(numpy_u16(&wrong).is_err(), "{wrong:?}");
        }
    }
}
