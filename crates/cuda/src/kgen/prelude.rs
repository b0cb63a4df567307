//! What every kernel's text begins with: types, conversions, vector accesses, reductions, random numbers.

/// Types of two bytes are structs of this text's own, so that no header is needed. Where there is no GPU's assembly
/// (`__CUDA_ARCH__` is not defined) the conversions are done on the bits.
pub(super) const TEXT: &str = include_str!("prelude.cuh");
