//! What passes and planner may do for a target: decisions that depend on kernels, caches and libraries, as data.

use crate::dtype::DType;
use crate::ops::RecomputeCost;
use crate::ops::conv::Filter;
use crate::shape::TensorType;

/// The rules of a target. A graph compiled by the rules of one target is an ordinary graph: every executor can run it, but for filters that
/// lie in an order that its kernels do not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Alignment of every tensor, in bytes; a power of two.
    pub alignment: usize,
    /// Longest row, in elements, along which one kernel may compute a sum or a maximum and then read the row again.
    pub longest_row: usize,
    /// Whether products of 16-bit operands round what they have accumulated to the operands' type before a fusion behind them reads
    /// it: convolutions with their gradients, those of weights included, and matrix products whose result is rounded at all.
    pub products_give_16_bits: bool,
    /// Whether the result of a matrix product of 16-bit operands is rounded behind its bias, where nothing else reads it.
    pub biases_before_rounding: bool,
    /// Whether matrix products are added to sums by factors that are numbers in memory, where such numbers are all that makes the sum.
    pub factors_of_products: bool,
    /// Whether regions that compute the same for other tensors run one behind the other, so that they may be launched as one.
    pub alike_regions_together: bool,
    /// Whether a fusion without a product adds all elements of a tensor, whatever its axes, to one number. Otherwise its rows are
    /// added first, then their sum's columns.
    pub sums_of_whole_tensors: bool,
    /// The costliest operations of an element that are cheaper than to read its value from memory: fusions compute such values again.
    pub cheaper_than_memory: RecomputeCost,
    /// Which attention keeps the mask of its dropout for its gradient; `None` if all gradients draw it again.
    pub kept_masks: Option<MaskRules>,
    /// Whether products of the first items of a batch leave out the others. Otherwise they take the whole batch, which is zeros there.
    pub limited_products: bool,
    /// How the weights of convolutions lie, but for depthwise ones, and all state of their shapes.
    pub filters: Filter,
    /// Which matrix products get further columns; `None` if none does.
    pub columns: Option<ColumnRules>,
    /// Which convolutions scale, shift and rectify their input while they read it; `None` if none does.
    pub prologue: Option<PrologueRules>,
    /// Which convolutions run some lines at a time, as the depthwise convolution behind them reads them; `None` if none does.
    pub chain: Option<ChainRules>,
}

/// Attention of 16-bit operands that keeps the mask of its dropout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskRules {
    /// What the elements of a head are a multiple of.
    pub multiple: usize,
    /// Most elements of a head.
    pub most: usize,
}

/// Matrix products that may have more columns than were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnRules {
    /// What numbers of columns are a multiple of.
    pub multiple: usize,
    /// Fewest columns that are worth it.
    pub least: usize,
}

/// Inputs that convolutions may scale, shift and rectify while they read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrologueRules {
    /// Element type of the input.
    pub dtype: DType,
    /// Fewest channels of the input.
    pub least_channels: usize,
}

/// Convolutions that may run as the depthwise convolution behind them reads their result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRules {
    /// Fewest elements of an image's result.
    pub least_elements: usize,
    /// Most products of a sum of the first convolution.
    pub longest_reduction: usize,
}

impl Rules {
    /// Those of processors with caches and vector units, and of plans that nobody runs.
    pub const DEFAULT: Rules = Rules {
        alignment: 64,
        // Held in cache with what is computed from it.
        longest_row: 1 << 16,
        products_give_16_bits: false,
        biases_before_rounding: false,
        // A fusion multiplies by them while it is at it.
        factors_of_products: false,
        // A call costs less than the memory of what waits for others.
        alike_regions_together: false,
        // Sums of rows are added behind the product that gives the tensor, while blocks of it are in cache.
        sums_of_whole_tensors: false,
        // A core computes a polynomial while another level of the caches gives a vector.
        cheaper_than_memory: RecomputeCost::Arithmetic,
        // It is drawn while products of tiles are computed.
        kept_masks: None,
        limited_products: true,
        // Vectors take neighbouring output channels.
        filters: Filter::Hwio,
        // Kernels read rows that begin anywhere.
        columns: None,
        // With fewer channels, pixels cannot be copied one by one without loss.
        prologue: Some(PrologueRules { dtype: DType::F32, least_channels: 16 }),
        // Less stays in the second-level cache of several cores until it is read.
        chain: Some(ChainRules { least_elements: 1 << 20, longest_reduction: 128 }),
    };

    /// The axes of state of a type in the order in which they lie, if that is another one: those of filters, told by the shape alone, so
    /// that all plans that share a state agree. Filters of one channel may belong to depthwise convolutions.
    pub fn axes_of_state(&self, ty: &TensorType) -> Option<[usize; 4]> {
        let is_filter = ty.shape.rank() == 4 && ty.shape[2] > 1;
        (self.filters == Filter::Ohwi && is_filter).then_some(Filter::TO_OHWI)
    }

    /// Each rule in words, for people: its name and its value.
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        let columns =
            |rules: &ColumnRules| format!("a multiple of {} where there are {} or more", rules.multiple, rules.least);
        let prologue = |rules: &PrologueRules| format!("{}, {} channels or more", rules.dtype, rules.least_channels);
        let chain = |rules: &ChainRules| {
            format!(
                "{} elements or more an image, of at most {} products each",
                rules.least_elements, rules.longest_reduction
            )
        };
        let alike = if self.alike_regions_together { "one behind the other" } else { "where memory asks for them" };
        let sums = if self.sums_of_whole_tensors { "at once" } else { "rows, then columns" };
        let results = if self.products_give_16_bits { "16 bits" } else { "f32" };
        let biases = if self.biases_before_rounding { "before it is rounded" } else { "to what was rounded" };
        let again = match self.cheaper_than_memory {
            RecomputeCost::Arithmetic => "arithmetic",
            RecomputeCost::Division => "arithmetic, divisions",
            RecomputeCost::Function => "arithmetic, functions of an element",
            RecomputeCost::Pass => "arithmetic, functions, random numbers",
            RecomputeCost::Kernel => "everything",
        };
        let masks = |rules: &MaskRules| {
            format!("kept, of 16-bit heads of a multiple of {} up to {}", rules.multiple, rules.most)
        };
        let limited = if self.limited_products { "those items alone" } else { "zeros behind them" };
        let factors = if self.factors_of_products { "numbers in memory" } else { "in the fusion" };
        vec![
            ("alignment", format!("{} bytes", self.alignment)),
            ("longest row of a fused reduction", format!("{} elements", self.longest_row)),
            ("regions alike", alike.to_owned()),
            ("sums of whole tensors", sums.to_owned()),
            ("results of products of 16-bit operands", results.to_owned()),
            ("bias of such a matrix product added", biases.to_owned()),
            ("factors of sums of such products", factors.to_owned()),
            ("computed again rather than read", again.to_owned()),
            ("masks of dropout in attention", self.kept_masks.as_ref().map_or_else(|| "drawn twice".to_owned(), masks)),
            ("products of the first items of a batch", limited.to_owned()),
            ("weights of convolutions", self.filters.axes().to_owned()),
            ("columns of matrix products", self.columns.as_ref().map_or_else(|| "as they are".to_owned(), columns)),
            ("prologues of convolutions", self.prologue.as_ref().map_or_else(|| "none".to_owned(), prologue)),
            ("convolutions in depthwise ones", self.chain.as_ref().map_or_else(|| "none".to_owned(), chain)),
        ]
    }
}
