//! What is known of a kind of GPU, and how long a step would take on it. No device is needed.

mod launches;
mod prediction;
#[cfg(test)]
mod tests;

pub use launches::{Launch, launches};
pub use prediction::{Bound, FamilyUse, FusedProducts, PlainLowering, Prediction, Reached, scratch_bytes};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Limits of a kind of GPU, and what kinds of launches reach of them, from a TOML file.
#[derive(Clone, Debug, PartialEq)]
pub struct Sheet {
    /// As on the command line: that of a sheet that is built in, or of a file.
    pub name: String,
    /// Its file.
    pub text: String,
    of: Description,
}

/// A sheet's file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    /// Name of the product.
    product: String,
    /// Where its figures are from.
    source: String,
    limits: Limits,
    efficiency: BTreeMap<Family, Efficiency>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    /// 10^12 FLOPs a second of `f32` without tensor cores.
    fp32_tflops: Figure,
    /// The same of `f32` operands rounded to TF32 on tensor cores.
    tf32_tflops: Figure,
    /// The same of 16-bit operands added to `f32` on tensor cores.
    half_tflops: Figure,
    /// 10^9 bytes a second from and to memory.
    memory_gbytes_per_s: Figure,
    /// 10^9 bytes of memory.
    memory_gbytes: Figure,
    /// 10^9 bytes of it that the driver and libraries keep.
    reserved_gbytes: Figure,
    /// Microseconds that a launch takes beside its work, replayed as a part of a graph.
    launch_us: Figure,
}

/// Shares of limits that launches of a kind reach.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Efficiency {
    /// Of the rate of their products, where the kind has products.
    arithmetic: Option<Figure>,
    /// Of the bandwidth of memory.
    memory: Figure,
}

/// A number of a sheet.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure {
    value: f64,
    origin: Origin,
}

/// Where a number is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The maker's data sheet.
    DataSheet,
    /// Measured on such a GPU.
    Measured,
    /// Neither.
    Estimate,
}

impl Origin {
    /// As in tables.
    pub fn name(self) -> &'static str {
        match self {
            Origin::DataSheet => "data sheet",
            Origin::Measured => "measured",
            Origin::Estimate => "estimate",
        }
    }
}

/// In which numbers a launch multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// `f32`, without tensor cores.
    F32,
    /// `f32` rounded to TF32, on tensor cores.
    Tf32,
    /// 16-bit operands, on tensor cores.
    Half,
}

/// What kind of work a launch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Matrix products as they are.
    Products,
    /// Matrix products with more in their pass: a bias, GELU, a sum that they are added to.
    ProductsFused,
    /// Matrix products with the gradient of GELU in their pass.
    GeluGradients,
    /// Convolutions as they are.
    Convolutions,
    /// Those whose input has fewer than eight channels.
    FewChannels,
    /// Convolutions with more in their pass.
    ConvolutionsFused,
    /// Depthwise convolutions.
    Depthwise,
    /// Attention.
    Attention,
    /// Gradients of attention.
    AttentionGradients,
    /// Fusions by elements.
    Pointwise,
    /// Fusions that reduce rows.
    Rows,
    /// Those of rows of 16,384 columns and more.
    LongRows,
    /// Fusions that sum over rows, or take moments over them.
    Sums,
    /// Several fusions as one launch.
    Groups,
    /// Rows of a table by index.
    Gather,
    /// Additions to rows by index.
    ScatterAdd,
    /// Pooling.
    Pooling,
    /// Gradients of pooling.
    PoolingGradients,
    /// Reference boxes, their codes and matches.
    Boxes,
    /// Sorting and what chooses: top-k, suppression, samples.
    Selection,
    /// Features of regions, their gradients, targets of masks.
    RegionFeatures,
    /// Reductions that are no fusions, and random numbers.
    Reductions,
    /// Copies, zeros, and what else moves elements.
    Copies,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 23] = [
        Family::Products,
        Family::ProductsFused,
        Family::GeluGradients,
        Family::Convolutions,
        Family::FewChannels,
        Family::ConvolutionsFused,
        Family::Depthwise,
        Family::Attention,
        Family::AttentionGradients,
        Family::Pointwise,
        Family::Rows,
        Family::LongRows,
        Family::Sums,
        Family::Groups,
        Family::Gather,
        Family::ScatterAdd,
        Family::Pooling,
        Family::PoolingGradients,
        Family::Boxes,
        Family::Selection,
        Family::RegionFeatures,
        Family::Reductions,
        Family::Copies,
    ];

    /// As in tables.
    pub fn name(self) -> &'static str {
        self.names().0
    }

    /// As in sheets.
    fn key(self) -> &'static str {
        self.names().1
    }

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Family::Products => ("matrix products", "products"),
            Family::ProductsFused => ("matrix products with more", "products_fused"),
            Family::GeluGradients => ("matrix products with GELU's gradient", "gelu_gradients"),
            Family::Convolutions => ("convolutions", "convolutions"),
            Family::FewChannels => ("convolutions of few channels", "few_channels"),
            Family::ConvolutionsFused => ("convolutions with more", "convolutions_fused"),
            Family::Depthwise => ("depthwise convolutions", "depthwise"),
            Family::Attention => ("attention", "attention"),
            Family::AttentionGradients => ("gradients of attention", "attention_gradients"),
            Family::Pointwise => ("fusions by elements", "pointwise"),
            Family::Rows => ("fusions along rows", "rows"),
            Family::LongRows => ("fusions along long rows", "long_rows"),
            Family::Sums => ("fusions with sums over rows", "sums"),
            Family::Groups => ("groups of fusions", "groups"),
            Family::Gather => ("gather", "gather"),
            Family::ScatterAdd => ("scatter-add", "scatter_add"),
            Family::Pooling => ("pooling", "pooling"),
            Family::PoolingGradients => ("gradients of pooling", "pooling_gradients"),
            Family::Boxes => ("boxes", "boxes"),
            Family::Selection => ("sorts, selection", "selection"),
            Family::RegionFeatures => ("features of regions", "region_features"),
            Family::Reductions => ("reductions, random", "reductions"),
            Family::Copies => ("copies, zeros", "copies"),
        }
    }

    /// Whether its launches have FLOPs of products.
    fn has_products(self) -> bool {
        matches!(
            self,
            Family::Products
                | Family::ProductsFused
                | Family::GeluGradients
                | Family::Convolutions
                | Family::FewChannels
                | Family::ConvolutionsFused
                | Family::Depthwise
                | Family::Attention
                | Family::AttentionGradients
        )
    }
}

/// A sheet that cannot be used.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SheetError {
    #[error("{name}: neither a file nor a sheet that is built in; there are {}", Sheet::names().join(", "))]
    Unknown { name: String },
    #[error("sheet {name}: {problem}")]
    Invalid { name: String, problem: String },
}

/// Sheets that are built in: name and text.
const BUILT_IN: [(&str, &str); 3] =
    [("h200", include_str!("h200.toml")), ("h100", include_str!("h100.toml")), ("a100", include_str!("a100.toml"))];

impl Sheet {
    /// Names of the sheets that are built in: H200, H100 and A100, each as SXM module.
    pub fn names() -> Vec<&'static str> {
        BUILT_IN.iter().map(|(name, _)| *name).collect()
    }

    /// Name of the one that is taken where none is named.
    pub const DEFAULT: &str = BUILT_IN[0].0;

    /// The one that is taken where none is named.
    pub fn usual() -> Sheet {
        Sheet::find(Self::DEFAULT).expect("a test reads all sheets that are built in")
    }

    /// A sheet that is built in, by its name, or one from a TOML file.
    ///
    /// # Errors
    /// [`SheetError`] for a name that is neither of a sheet that is built in nor of a file, a file that cannot be read, a field that
    /// is unknown, missing, or not possible.
    pub fn find(name: &str) -> Result<Sheet, SheetError> {
        let invalid = |problem| SheetError::Invalid { name: name.to_owned(), problem };
        let text = match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => (*text).to_owned(),
            None if Path::new(name).is_file() => {
                fs::read_to_string(name).map_err(|error| invalid(error.to_string()))?
            }
            None => return Err(SheetError::Unknown { name: name.to_owned() }),
        };
        let of = parse(&text).map_err(invalid)?;
        Ok(Sheet { name: name.to_owned(), text, of })
    }

    /// Name of the product.
    pub fn product(&self) -> &str {
        &self.of.product
    }

    /// Bytes of memory that are left for plans.
    pub fn free_bytes(&self) -> u64 {
        let Limits { memory_gbytes, reserved_gbytes, .. } = &self.of.limits;
        ((memory_gbytes.value - reserved_gbytes.value) * 1e9) as u64
    }
}

/// A sheet from its text.
///
/// # Errors
/// What is wrong with it, in one line.
fn parse(text: &str) -> Result<Description, String> {
    let sheet: Description = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count()) + 1;
        format!("line {line}: {}", error.message().replace('\n', "; "))
    })?;
    let Limits { fp32_tflops, tf32_tflops, half_tflops, memory_gbytes_per_s, .. } = &sheet.limits;
    let Limits { memory_gbytes, reserved_gbytes, launch_us, .. } = &sheet.limits;
    let positive = |figure: &Figure| figure.value.is_finite() && figure.value > 0.0;
    let at_least_0 = |figure: &Figure| figure.value.is_finite() && figure.value >= 0.0;
    let is_share = |figure: &Figure| figure.value > 0.0 && figure.value <= 1.0;
    let rules = [
        ("fp32_tflops", positive(fp32_tflops), "above 0"),
        ("tf32_tflops", positive(tf32_tflops), "above 0"),
        ("half_tflops", positive(half_tflops), "above 0"),
        ("memory_gbytes_per_s", positive(memory_gbytes_per_s), "above 0"),
        ("memory_gbytes", positive(memory_gbytes), "above 0"),
        ("reserved_gbytes", at_least_0(reserved_gbytes), "at least 0"),
        ("reserved_gbytes", reserved_gbytes.value < memory_gbytes.value, "less than memory_gbytes"),
        ("launch_us", at_least_0(launch_us), "at least 0"),
    ];
    if let Some((field, _, allowed)) = rules.into_iter().find(|(_, holds, _)| !holds) {
        return Err(format!("`limits.{field}` must be {allowed}"));
    }
    for family in Family::ALL {
        let key = family.key();
        let Some(Efficiency { arithmetic, memory }) = sheet.efficiency.get(&family) else {
            return Err(format!("`efficiency.{key}` is missing"));
        };
        match (family.has_products(), arithmetic) {
            (true, None) => return Err(format!("`efficiency.{key}.arithmetic` is missing")),
            (false, Some(_)) => return Err(format!("`efficiency.{key}.arithmetic`: it has no products")),
            _ => {}
        }
        for (what, figure) in [("arithmetic", arithmetic.as_ref()), ("memory", Some(memory))] {
            if figure.is_some_and(|figure| !is_share(figure)) {
                return Err(format!("`efficiency.{key}.{what}` must be above 0 and at most 1"));
            }
        }
    }
    Ok(sheet)
}
