use std::fmt::Write as _;

/// Bytes in lower-case hexadecimal digits, two for each.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(text, "{byte:02x}").expect("text takes all that is written");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(hex(&[0, 0x0a, 0xb0, 0xff]), "000ab0ff");
        assert_eq!(hex(&[]), "");
    }
}
