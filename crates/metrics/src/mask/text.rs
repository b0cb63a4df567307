//! The compressed form of run lengths: text with six bits per character, from `0` to `o`.
//!
//! As in LEB128, five bits of a signed number, lowest first, and a sixth bit that is set if more follow. From the fourth
//! run on, the number is the difference to the run length two before.

use super::rle::MAX_PIXELS;
use super::{MaskError, Rle};

const FIRST: u8 = b'0';
const MORE: u8 = 0x20;
const SIGN: u8 = 0x10;
/// Shift beyond the bits of any valid run length.
const MAX_SHIFT: u32 = 35;

impl Rle {
    /// Creates a mask from compressed run lengths.
    ///
    /// # Errors
    ///
    /// If the text has an unknown character, ends within a number or has a negative run length, and as [`Rle::new`].
    pub fn from_compressed(height: u32, width: u32, text: &str) -> Result<Self, MaskError> {
        let mut counts: Vec<u32> = Vec::with_capacity(text.len() / 2 + 1);
        let (mut value, mut shift, mut is_within) = (0, 0, false);
        for (byte, character) in text.char_indices() {
            let bits = u8::try_from(character).ok().and_then(|character| character.checked_sub(FIRST));
            let bits = bits.filter(|&bits| bits < 64).ok_or(MaskError::Character { character, byte })?;
            value |= i64::from(bits & (MORE - 1)) << shift;
            shift = (shift + 5).min(MAX_SHIFT);
            is_within = bits & MORE != 0;
            if is_within {
                continue;
            }
            if bits & SIGN != 0 {
                value |= -1 << shift;
            }
            let index = counts.len();
            let length = if index > 2 { value + i64::from(counts[index - 2]) } else { value };
            let run = u32::try_from(length).ok().filter(|&run| run <= MAX_PIXELS);
            counts.push(run.ok_or(MaskError::Run { index, length })?);
            (value, shift) = (0, 0);
        }
        if is_within {
            return Err(MaskError::Truncated { byte: text.len() });
        }
        Self::new(height, width, counts)
    }

    /// Compressed run lengths, as in COCO's files.
    pub fn compressed(&self) -> String {
        let counts = self.counts();
        let mut text = String::with_capacity(counts.len() * 2);
        for (index, &count) in counts.iter().enumerate() {
            let before = if index > 2 { counts[index - 2] } else { 0 };
            let mut value = i64::from(count) - i64::from(before);
            loop {
                let bits = (value & i64::from(MORE - 1)) as u8;
                value >>= 5;
                let is_last = value == if bits & SIGN == 0 { 0 } else { -1 };
                text.push(char::from(FIRST + if is_last { bits } else { bits | MORE }));
                if is_last {
                    break;
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs, and their compressed form by pycocotools.
    const TEXTS: &[(&[u32], &str)] = &[
        (&[6], "6"),
        (&[0, 3, 2, 1], "032N"),
        (&[5, 4, 9, 100, 3, 7], "549P3JSM"),
        (&[0, 1, 0, 1, 1, 0], "01001O"),
        (&[100_000, 3, 2_000_000, 40, 1, 31, 32, 16, 15], "PeQ33PTQm1U1QlnRNGo0A_O"),
    ];

    #[test]
    fn text_and_runs_are_each_other() {
        for (counts, text) in TEXTS {
            let pixels = counts.iter().sum();
            let mask = Rle::new(pixels, 1, counts.to_vec()).unwrap();
            assert_eq!(mask.compressed(), *text);
            assert_eq!(Rle::from_compressed(pixels, 1, text), Ok(mask));
        }
    }

    #[test]
    fn broken_text_is_refused() {
        let read = |text: &str| Rle::from_compressed(2, 3, text).unwrap_err();
        assert_eq!(read("0p"), MaskError::Character { character: 'p', byte: 1 });
        assert_eq!(read("00/"), MaskError::Character { character: '/', byte: 2 });
        assert_eq!(read("0é"), MaskError::Character { character: 'é', byte: 1 });
        assert_eq!(read("0P"), MaskError::Truncated { byte: 2 });
        assert_eq!(read("0N"), MaskError::Run { index: 1, length: -2 });
        assert_eq!(read("001N"), MaskError::Run { index: 3, length: -2 });
        assert_eq!(read("5"), MaskError::Covered { covered: 5, height: 2, width: 3 });
        assert_eq!(read(""), MaskError::Covered { covered: 0, height: 2, width: 3 });
        for long in ["o".repeat(40) + "0", "P".repeat(40) + "O", "o".repeat(40) + "1"] {
            assert!(matches!(read(&long), MaskError::Run { index: 0, .. }), "{long}");
        }
    }
}
