//! Published throughputs over numbers of devices, read from the tables that reports show.

use super::Ranks;
use crate::report::{Precision, PublishedTable, Reference};
use bessemer_ir::DType;

/// One framework, model, precision and batch on one machine, over numbers of devices.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    /// The framework with its options, or the device, as the table names it.
    pub(super) name: String,
    pub(super) model: String,
    /// Tokens of a sequence where they are not the usual ones of the model.
    pub(super) sequence_length: Option<usize>,
    pub(super) precision: DType,
    /// Samples of a micro-batch of one device.
    pub(super) batch_size: usize,
    /// Name of the cluster.
    pub(super) cluster: &'static str,
    /// One device first.
    pub(super) points: Vec<Point>,
}

/// A published throughput.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) ranks: Ranks,
    /// Micro-batches of a step of one device.
    pub(super) micro_batches: u64,
    /// Samples per second of all devices.
    pub(super) throughput: f64,
}

impl Series {
    /// Seconds of a step as published.
    pub(super) fn seconds(&self, point: &Point) -> f64 {
        let samples = self.batch_size as u64 * point.micro_batches * point.ranks.count() as u64;
        samples as f64 / point.throughput
    }
}

/// The number at the beginning of a cell, before a remark.
fn number(cell: &str) -> Option<f64> {
    cell.split_whitespace().next()?.parse().ok()
}

/// Tables of training of a publication.
fn tables(reference: Reference) -> Vec<PublishedTable> {
    let publication = reference.publication().expect("the file is tested");
    publication.table.into_iter().filter(|table| table.mode.as_deref() == Some("train")).collect()
}

/// All series of DLPerf: a row is a framework, and the columns whose title is a number are numbers of devices, 8 in a node.
pub(super) fn dlperf() -> Vec<Series> {
    let of_row = |table: &PublishedTable, row: &[String]| {
        let points = table.columns.iter().zip(&row[1..]).filter_map(|(column, cell)| {
            let devices: usize = column.parse().ok()?;
            let ranks = Ranks { nodes: devices.div_ceil(8), devices: devices.min(8) };
            Some(Point { ranks, micro_batches: 1, throughput: number(cell)? })
        });
        Some(Series {
            name: row[0].clone(),
            model: table.model.clone(),
            sequence_length: table.sequence_length,
            precision: if table.precision == Some(Precision::Amp) { DType::F16 } else { DType::F32 },
            batch_size: number(&row[1])? as usize,
            cluster: "v100x8-ib100",
            points: points.collect(),
        })
        .filter(|series| series.points.len() > 1)
    };
    let series =
        |table: PublishedTable| table.rows.iter().filter_map(|row| of_row(&table, row)).collect::<Vec<Series>>();
    tables(Reference::DlPerf).into_iter().flat_map(series).collect()
}

/// All series of NVIDIA's examples: a row is a number of devices, such as `8 A100`, all of one node; a column of throughputs
/// follows those of its batch and of the micro-batches of its steps, or shares them with the column before. Tables that do not have the
/// batch beside are left out.
pub(super) fn deep_learning_examples() -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    let says_batches = |table: &PublishedTable| table.columns[0].starts_with("batch");
    for table in tables(Reference::DeepLearningExamples).into_iter().filter(says_batches) {
        for row in &table.rows {
            let (devices, device) = row[0].split_once(' ').expect("a number of devices and their name");
            let devices = devices.parse().expect("a number of devices");
            let (mut batch_size, mut micro_batches) = (0, 1);
            for (column, cell) in table.columns.iter().zip(&row[1..]) {
                let value = number(cell).expect("a number");
                if column.starts_with("batch") {
                    batch_size = value as usize;
                } else if column.starts_with("micro-batches") {
                    micro_batches = value as u64;
                } else {
                    let found = Series {
                        name: device.to_owned(),
                        model: table.model.clone(),
                        sequence_length: table.sequence_length,
                        precision: if column == "AMP" { DType::F16 } else { DType::F32 },
                        batch_size,
                        cluster: match device {
                            "A100" => "a100x8",
                            "V100, 32 GB" => "v100x16",
                            _ => "v100x8",
                        },
                        points: Vec::new(),
                    };
                    let point = Point { ranks: Ranks { nodes: 1, devices }, micro_batches, throughput: value };
                    let is_same = |known: &&mut Series| Series { points: Vec::new(), ..(*known).clone() } == found;
                    match series.iter_mut().find(is_same) {
                        Some(known) => known.points.push(point),
                        None => series.push(Series { points: vec![point], ..found }),
                    }
                }
            }
        }
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'a>(all: &'a [Series], name: &str, model: &str, precision: DType, batch_size: usize) -> &'a Series {
        let is_wanted =
            |s: &&Series| s.name == name && s.model == model && s.precision == precision && s.batch_size == batch_size;
        all.iter().find(is_wanted).expect("a series")
    }

    #[test]
    fn series_are_read_by_rows_and_by_columns() {
        let dlperf = dlperf();
        assert_eq!(dlperf.len(), 8 + 8 + 6 + 6 + 7 + 6);
        let series = find(&dlperf, "NGC TensorFlow 1.15.2, XLA", "resnet50", DType::F16, 224);
        let points: Vec<(usize, usize, f64)> =
            series.points.iter().map(|p| (p.ranks.nodes, p.ranks.devices, p.throughput)).collect();
        assert_eq!(points, [(1, 1, 1198.55), (1, 8, 8588.45), (2, 8, 14931.03), (4, 8, 29171.69)]);
        assert_eq!(series.seconds(&series.points[3]), 224.0 * 32.0 / 29171.69);

        let examples = deep_learning_examples();
        assert_eq!(examples.len(), 4 + 8 + 6 + 6 + 6, "each begins with one device");
        assert!(examples.iter().all(|s| s.points[0].ranks == Ranks::ONE && s.points.len() > 1));
        let electra = find(&examples, "V100, 32 GB", "electra-base", DType::F16, 176);
        assert_eq!((electra.cluster, electra.points.len()), ("v100x16", 3));
        assert_eq!(electra.points[2].micro_batches, 24);
        let mask = find(&examples, "A100", "mask-rcnn", DType::F16, 4);
        assert_eq!(mask.points.iter().map(|p| p.throughput).collect::<Vec<_>>(), [28.58, 114.45]);
    }
}
