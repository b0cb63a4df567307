//! Arithmetic of sizes.

/// The largest number that divides both; the other one where one is 0.
pub(crate) fn greatest_common_divisor(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
