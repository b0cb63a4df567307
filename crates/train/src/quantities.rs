//! Numbers as people read them.

/// Bytes with a decimal unit: `512 B`, `1.5 GB`.
pub fn bytes(value: u64) -> String {
    if value < 1000 { format!("{value} B") } else { format!("{}B", scaled(value as f64)) }
}

/// A large number with a decimal prefix: `25.6 M`, `8.18 G`.
pub fn scaled(value: f64) -> String {
    const PREFIXES: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let (mut value, mut prefix) = (value, 0);
    while value.abs() >= 999.5 && prefix + 1 < PREFIXES.len() {
        value /= 1000.0;
        prefix += 1;
    }
    format!("{} {}", significant(value, 3), PREFIXES[prefix])
}

/// A number with `digits` significant digits, without an exponent.
pub fn significant(value: f64, digits: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let decimals = |x: f64| (digits - 1 - x.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let shown = format!("{value:.*}", decimals(value));
    // Rounding may add a digit before the point: 0.9999 is 1.00.
    let rounded: f64 = shown.parse().unwrap_or(value);
    if rounded == 0.0 { shown } else { format!("{value:.*}", decimals(rounded)) }
}

/// `1 thread`, `2 threads`.
pub fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(1_536_000_000), "1.54 GB");
        assert_eq!(bytes(999_900), "1.00 MB");
        assert_eq!(scaled(25_557_032.0), "25.6 M");
        assert_eq!(scaled(12.0), "12.0 ");
    }

    #[test]
    fn digits() {
        assert_eq!(significant(1234.5, 3), "1234");
        assert_eq!(significant(0.012_345, 3), "0.0123");
        assert_eq!(significant(0.0, 3), "0");
    }

    #[test]
    fn one_is_no_plural() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "step")), ["0 steps", "1 step", "2 steps"]);
    }
}
