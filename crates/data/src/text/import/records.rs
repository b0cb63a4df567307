//! TFRecord files, which may be compressed with gzip.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::file::{Each, Found};
use crate::DataError;
use crate::text::Instance;
use crate::text::maker::{ExampleShape, Record};
use crate::tfrecord::RecordStream;

/// Lengths of the first instance, `None` in a file without one.
pub(super) fn shape(path: &Path, gzip: bool) -> Result<Option<ExampleShape>, DataError> {
    let Some((place, payload)) = open(path, gzip)?.next()? else { return Ok(None) };
    Instance::shape(&payload).map(Some).map_err(|flaw| flaw.at(path, place))
}

pub(super) fn each(path: &Path, gzip: bool, vocabulary_size: usize, each: Each) -> Result<(), DataError> {
    let mut records = open(path, gzip)?;
    let mut shape = None;
    while let Some((place, payload)) = records.next()? {
        let decoded = match shape {
            Some(shape) => Ok(shape),
            None => Instance::shape(&payload).inspect(|&found| shape = Some(found)),
        };
        let decoded = decoded.and_then(|shape| Instance::decode(&payload, shape, vocabulary_size));
        each(place, Found::Instance(decoded.map_err(|flaw| flaw.at(path, place))?))?;
    }
    Ok(())
}

fn open(path: &Path, gzip: bool) -> Result<RecordStream<'_, Box<dyn Read>>, DataError> {
    let file = BufReader::with_capacity(1 << 18, File::open(path).map_err(DataError::io(path, "open the file"))?);
    let reader: Box<dyn Read> = if gzip { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    Ok(RecordStream::new(path, reader))
}
