//! The HDF5 files of `create_pretraining_data.py` in NVIDIA's BERT for PyTorch: six arrays, with one instance a row.

use std::path::Path;

use hdf5_reader::{Dataset, Datatype, H5Type, SliceInfo, SliceInfoElem};

use super::file::{Each, Found};
use crate::hdf5::open_hdf5;
use crate::text::Instance;
use crate::text::example::{IDS, NEXT_SENTENCE, POSITIONS, WEIGHTS};
use crate::text::features::{INPUT_IDS, INPUT_MASK, SEGMENT_IDS};
use crate::text::maker::{ExampleShape, Record};
use crate::tf_example;
use crate::tf_example::proto::Kind;
use crate::{DataError, FilePosition};

const EXPECTED: &str = "the six arrays of instances for BERT that NVIDIA's scripts write, undamaged";
/// Numbers of an array that are read at a time.
const BLOCK: usize = 1 << 19;

/// The arrays of a file with `N` instances, none of which is read yet: `input_ids`, `input_mask`, `segment_ids` `[N, L]`,
/// `masked_lm_positions`, `masked_lm_ids` `[N, P]`, `next_sentence_labels` `[N]`.
pub(super) struct Arrays<'a> {
    path: &'a Path,
    rows: u64,
    shape: ExampleShape,
    arrays: Vec<Array>,
}

struct Array {
    name: &'static str,
    dataset: Dataset,
    /// 1 of an array with one dimension.
    columns: usize,
}

impl<'a> Arrays<'a> {
    /// Errors: a damaged file, or one with other arrays.
    pub(super) fn open(path: &'a Path) -> Result<Self, DataError> {
        let error = |error: hdf5_reader::error::Error| DataError::layout(path, error.to_string(), EXPECTED);
        let file = open_hdf5(path).map_err(|problem| DataError::layout(path, problem, EXPECTED))?;
        let root = file.root_group().map_err(error)?;
        let (_, there) = root.member_names().map_err(error)?;
        let names = [INPUT_IDS[0], INPUT_MASK[0], SEGMENT_IDS[0], POSITIONS[0], IDS[0], NEXT_SENTENCE[0]];
        let mut arrays = Vec::new();
        for name in names {
            if !there.iter().any(|found| found == name) {
                return Err(DataError::layout(path, format!("no array `{name}` in it"), EXPECTED));
            }
            arrays.push(Array::open(path, name, root.dataset(name).map_err(error)?)?);
        }
        let rows = arrays[0].dataset.shape()[0];
        let shape = ExampleShape { sequence_length: arrays[0].columns, predictions: arrays[3].columns };
        let expected = [
            shape.sequence_length,
            shape.sequence_length,
            shape.sequence_length,
            shape.predictions,
            shape.predictions,
            1,
        ];
        for (array, columns) in arrays.iter().zip(expected) {
            if array.dataset.shape()[0] != rows || array.columns != columns {
                let problem = format!("`{}` has the shape {:?}", array.name, array.dataset.shape());
                return Err(DataError::layout(path, problem, format!("{rows} rows of {columns} numbers")));
            }
        }
        Ok(Self { path, rows, shape, arrays })
    }

    pub(super) fn shape(&self) -> ExampleShape {
        self.shape
    }

    /// Hands every instance to `each`.
    pub(super) fn each(&self, vocabulary_size: usize, each: Each) -> Result<(), DataError> {
        let rows = (BLOCK / self.shape.sequence_length.max(self.shape.predictions).max(1)).max(1);
        for start in (0..self.rows).step_by(rows) {
            let end = self.rows.min(start + rows as u64);
            let blocks = self.arrays.iter().map(|array| array.rows(self.path, start, end));
            let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
            for row in 0..(end - start) as usize {
                let place = FilePosition::Row((start as usize) + row + 1);
                let values = self
                    .arrays
                    .iter()
                    .zip(&blocks)
                    .map(|(array, block)| (array.name, &block[row * array.columns..(row + 1) * array.columns]));
                let decoded = Instance::decode(&message(values), self.shape, vocabulary_size);
                let instance = decoded.map_err(|flaw| flaw.at(self.path, place))?;
                each(place, Found::Instance(instance))?;
            }
        }
        Ok(())
    }
}

/// The message of an instance. The first position of 0 ends the list of what is to be predicted.
fn message<'a>(values: impl Iterator<Item = (&'static str, &'a [i64])>) -> Vec<u8> {
    let mut weights = Vec::new();
    let mut features = Vec::new();
    for (name, values) in values {
        if name == POSITIONS[0] {
            let wanted = values.iter().take_while(|&&position| position != 0).count();
            weights = (0..values.len()).map(|at| if at < wanted { 1.0 } else { 0.0 }).collect();
        }
        features.push((name, Kind::integers(values.to_vec())));
    }
    features.push((WEIGHTS[0], Kind::floats(weights)));
    tf_example::encode(features)
}

impl Array {
    /// Errors: not one or two dimensions; elements that are no integers.
    fn open(path: &Path, name: &'static str, dataset: Dataset) -> Result<Self, DataError> {
        let columns = match *dataset.shape() {
            [_] => Some(1),
            [_, columns] => usize::try_from(columns).ok(),
            _ => None,
        };
        let Some(columns) = columns else {
            let problem = format!("`{name}` has the shape {:?}", dataset.shape());
            return Err(DataError::layout(path, problem, "one or two dimensions"));
        };
        match dataset.dtype() {
            Datatype::FixedPoint { .. } => Ok(Self { name, dataset, columns }),
            other => Err(DataError::layout(path, format!("`{name}` has elements of {other:?}"), "integers")),
        }
    }

    /// Rows `start..end`, one after the other.
    fn rows(&self, path: &Path, start: u64, end: u64) -> Result<Vec<i64>, DataError> {
        let Datatype::FixedPoint { size, signed, .. } = *self.dataset.dtype() else {
            unreachable!("checked when opened")
        };
        let read = match (size, signed) {
            (1, true) => self.read::<i8>(start, end),
            (4, true) => self.read::<i32>(start, end),
            (8, true) => self.read::<i64>(start, end),
            _ => {
                let sign = if signed { "signed" } else { "unsigned" };
                let problem = format!("`{}` has {sign} integers of {size} bytes", self.name);
                return Err(DataError::layout(path, problem, "signed ones of 1, 4 or 8 bytes"));
            }
        };
        read.map_err(|error| {
            let problem = format!("rows {} to {end} of `{}`: {error}", start + 1, self.name);
            DataError::layout(path, problem, EXPECTED)
        })
    }

    fn read<T: H5Type + Into<i64> + Copy>(&self, start: u64, end: u64) -> hdf5_reader::error::Result<Vec<i64>> {
        let mut selection = SliceInfo::all(self.dataset.ndim());
        selection.selections[0] = SliceInfoElem::Slice { start, end, step: 1 };
        Ok(self.dataset.read_slice::<T>(&selection)?.iter().map(|&value| value.into()).collect())
    }
}
