//! The least fractions of the peak that kernels are to reach.

use super::{Bound, KernelResult, Pattern, Problem};

/// Fractions by pattern. Of several patterns that match a kernel the one with most characters counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Floors(Vec<(Pattern, f64)>);

/// Why a file of floors is refused.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FloorsError {
    #[error("not TOML: {0}")]
    Syntax(String),
    #[error("there are no lines `\"PATTERN\" = FRACTION`")]
    Empty,
    #[error("{0}")]
    Pattern(String),
    #[error("`{pattern}` is {value}; a fraction of the peak, above 0 and at most 1, is wanted")]
    Fraction { pattern: String, value: String },
    #[error("`{0}` matches no product: floors are for convolutions and matrix products")]
    Nothing(String),
}

impl Floors {
    /// One fraction for all.
    ///
    /// # Errors
    /// If it is no fraction.
    pub fn all(fraction: f64) -> Result<Floors, FloorsError> {
        Ok(Floors(vec![("*".parse().map_err(FloorsError::Pattern)?, checked("*", fraction)?)]))
    }

    /// From TOML: `"PATTERN" = FRACTION` lines.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Floors, FloorsError> {
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| FloorsError::Syntax(e.to_string()))?;
        let mut floors = Vec::with_capacity(table.len());
        for (pattern, value) in &table {
            let number = match value {
                toml::Value::Float(number) => *number,
                toml::Value::Integer(number) => *number as f64,
                other => return Err(not_a_fraction(pattern, other)),
            };
            floors.push((pattern.parse().map_err(FloorsError::Pattern)?, checked(pattern, number)?));
        }
        if floors.is_empty() { Err(FloorsError::Empty) } else { Ok(Floors(floors)) }
    }

    /// Whether every pattern is for some kernel.
    ///
    /// # Errors
    /// The first that matches no product of `problems`.
    pub fn check(&self, problems: &[Problem]) -> Result<(), FloorsError> {
        let products: Vec<String> =
            problems.iter().filter(|problem| problem.bound == Bound::Arithmetic).map(Problem::full_name).collect();
        match self.0.iter().find(|(pattern, _)| !products.iter().any(|name| pattern.matches(name))) {
            Some((pattern, _)) => Err(FloorsError::Nothing(pattern.text().to_string())),
            None => Ok(()),
        }
    }

    /// The floor of a kernel, if it has one.
    pub fn of(&self, full_name: &str) -> Option<f64> {
        let matching = self.0.iter().filter(|(pattern, _)| pattern.matches(full_name));
        matching.max_by_key(|(pattern, _)| pattern.weight()).map(|(_, fraction)| *fraction)
    }

    /// The products that were measured and are below their floors, with these.
    pub fn missed<'a>(&self, results: &'a [KernelResult]) -> Vec<(&'a KernelResult, f64)> {
        let below = |result: &'a KernelResult| {
            let fraction = result.fraction_of_peak.filter(|_| result.is_product())?;
            let floor = self.of(&result.full_name())?;
            (fraction < floor).then_some((result, floor))
        };
        results.iter().filter_map(below).collect()
    }
}

fn checked(pattern: &str, fraction: f64) -> Result<f64, FloorsError> {
    if fraction > 0.0 && fraction <= 1.0 { Ok(fraction) } else { Err(not_a_fraction(pattern, fraction)) }
}

fn not_a_fraction(pattern: &str, value: impl ToString) -> FloorsError {
    FloorsError::Fraction { pattern: pattern.to_string(), value: value.to_string().trim().to_string() }
}
