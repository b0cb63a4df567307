//! What logs, tables and curves of a task call things.

use crate::checkpoint::BestMetric;
use std::collections::BTreeMap;

/// The metric that decides between equal values of the best one.
const LOSS: &str = "loss";

/// Whether a metric is to rise or to fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Larger values are better.
    Higher,
    /// Smaller values are better.
    Lower,
}

/// What a number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// In `[0, 1]`, shown in percent.
    Fraction,
    /// Shown as it is.
    Plain,
}

impl Scale {
    /// For axes: percent, or as it is.
    pub fn shown(self, value: f64) -> f64 {
        match self {
            Scale::Fraction => value * 100.0,
            Scale::Plain => value,
        }
    }

    /// The unit in DLLogger's words.
    pub fn unit(self) -> &'static str {
        match self {
            Scale::Fraction => "%",
            Scale::Plain => "none",
        }
    }
}

/// A metric of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// As in files: `top1`.
    pub name: &'static str,
    /// As in tables: `top-1`.
    pub label: &'static str,
    /// How the value is shown.
    pub scale: Scale,
    /// On the axis of a chart; `None` for what has none.
    pub axis: Option<&'static str>,
    /// The counts that it is the ratio of, where it is one.
    pub ratio: Option<[&'static str; 2]>,
    /// The metric that is drawn in the same chart, to compare it with.
    pub beside: Option<&'static str>,
}

impl Metric {
    /// A number as it is.
    pub const fn plain(name: &'static str, label: &'static str, axis: Option<&'static str>) -> Self {
        Self { name, label, scale: Scale::Plain, axis, ratio: None, beside: None }
    }

    /// The same, drawn beside another one.
    pub const fn drawn_beside(self, other: &'static str) -> Self {
        Self { beside: Some(other), ..self }
    }

    /// A fraction that is in tables alone, in percent.
    pub const fn fraction(name: &'static str, label: &'static str) -> Self {
        Self { scale: Scale::Fraction, ..Self::plain(name, label, None) }
    }

    /// The ratio of two counts, shown in percent.
    pub const fn share(name: &'static str, label: &'static str, axis: &'static str, counts: [&'static str; 2]) -> Self {
        Self { axis: Some(axis), ratio: Some(counts), ..Self::fraction(name, label) }
    }
}

/// The vocabulary of a task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetricSchema {
    /// What samples are: `images`.
    pub samples: &'static str,
    /// Of speed: `images/s`.
    pub unit: &'static str,
    /// Numbers that a training step has as outputs, beside loss, learning rate and norm of the gradient.
    pub parts: &'static [&'static str],
    /// In the order of tables.
    pub metrics: &'static [Metric],
    /// The metric by which checkpoints are compared and which curves show, and when it is good.
    pub best: (&'static str, Better),
    /// What NVIDIA's scripts for such models call numbers that are logged.
    pub reference: ReferenceNames,
}

/// Names of numbers in the logs of NVIDIA's scripts for a model, which a DLLogger stream has beside those that all models share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReferenceNames {
    /// In all lines that have the number: of steps, of epochs, and of the run.
    pub always: &'static [ReferenceName],
    /// In the line of the run alone.
    pub summary: &'static [ReferenceName],
}

impl ReferenceNames {
    /// Those that all models share are the only ones.
    pub const NONE: Self = Self { always: &[], summary: &[] };
}

/// A name in the logs of NVIDIA's scripts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReferenceName {
    /// The name that all models share: `train.total_ips`.
    pub shared: &'static str,
    /// That of the scripts: `training_sequences_per_second`.
    pub reference: &'static str,
    /// What the number is multiplied by there.
    pub factor: f64,
}

impl ReferenceName {
    /// The same number.
    pub const fn new(shared: &'static str, reference: &'static str) -> Self {
        Self { shared, reference, factor: 1.0 }
    }

    /// The same number times `factor`.
    pub const fn times(self, factor: f64) -> Self {
        Self { factor, ..self }
    }
}

impl MetricSchema {
    /// What a metric or a part of a step means.
    pub fn scale(&self, name: &str) -> Scale {
        let known = self.metrics.iter().find(|metric| metric.name == name);
        known.map_or(Scale::Plain, |metric| metric.scale)
    }

    /// The axis of the best metric.
    pub fn best_axis(&self) -> &'static str {
        let best = self.metrics.iter().find(|metric| metric.name == self.best.0);
        best.and_then(|metric| metric.axis).unwrap_or(self.best.0)
    }

    /// The best metric of an evaluation after `step` updates, with the loss of the task where it has one.
    ///
    /// # Panics
    /// If the metrics are of another task.
    pub fn result(&self, metrics: &BTreeMap<String, f64>, step: u64) -> BestMetric {
        let metric = self.best.0.to_owned();
        BestMetric { value: metrics[&metric], metric, step, loss: metrics.get(LOSS).copied() }
    }

    /// Whether a result is an improvement over an earlier one. Of equal ones the lower loss decides, where both have one.
    pub fn improves(&self, result: &BestMetric, before: &BestMetric) -> bool {
        let is_equal = result.value == before.value;
        let has_less_loss = || result.loss.zip(before.loss).is_some_and(|(loss, before)| loss < before);
        let is_better = match self.best.1 {
            Better::Higher => result.value > before.value,
            Better::Lower => result.value < before.value,
        };
        is_better || (is_equal && has_less_loss())
    }

    /// A metric in a table: `76.54 %` or `1.2345`.
    pub fn show(&self, name: &str, value: f64) -> String {
        match self.scale(name) {
            Scale::Fraction => format!("{:.2} %", value * 100.0),
            Scale::Plain => format!("{value:.4}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::{classification, squad};

    #[test]
    fn the_lower_loss_decides_between_equal_results() {
        let result = |metric_schema: &MetricSchema, metrics: &[(&str, f64)]| {
            metric_schema.result(&metrics.iter().map(|&(name, value)| (name.to_owned(), value)).collect(), 1)
        };
        let metric_schema = &classification::TERMS;
        let of = |top1: f64, loss: f64| result(metric_schema, &[("top1", top1), ("loss", loss)]);
        assert!(
            metric_schema.improves(&of(0.5, 0.1), &of(0.5, 0.2))
                && !metric_schema.improves(&of(0.5, 0.2), &of(0.5, 0.1))
        );
        assert!(
            metric_schema.improves(&of(0.6, 0.2), &of(0.5, 0.1))
                && !metric_schema.improves(&of(0.4, 0.1), &of(0.5, 0.2))
        );
        let unknown = BestMetric { loss: None, ..of(0.5, 0.2) };
        assert!(
            !metric_schema.improves(&of(0.5, 0.1), &unknown) && !metric_schema.improves(&of(0.5, 0.1), &of(0.5, 0.1))
        );
        let (metric_schema, equal) = (&squad::TERMS, result(&squad::TERMS, &[("f1", 0.5)]));
        assert!(!metric_schema.improves(&equal, &equal));
    }
}
