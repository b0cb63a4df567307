//! What logs, tables and curves of a task call things.

/// Whether a metric is to rise or to fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Higher,
    Lower,
}

/// What a number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// In `[0, 1]`, shown in percent.
    Fraction,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
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
}

impl Terms {
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

    /// Whether `value` of the best metric is an improvement over `before`.
    pub fn improves(&self, value: f64, before: f64) -> bool {
        match self.best.1 {
            Better::Higher => value > before,
            Better::Lower => value < before,
        }
    }

    /// A metric in a table: `76.54 %` or `1.2345`.
    pub fn show(&self, name: &str, value: f64) -> String {
        match self.scale(name) {
            Scale::Fraction => format!("{:.2} %", value * 100.0),
            Scale::Plain => format!("{value:.4}"),
        }
    }
}
