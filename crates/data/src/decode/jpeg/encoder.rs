//! A small encoder for tests: all samplings, restart markers, and Huffman tables with codes of all lengths.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use crate::Philox;

/// How a picture is encoded.
#[derive(Debug)]
pub(super) struct Encoder {
    /// Blocks of luma in an MCU across and down; `None` for a grey picture.
    pub(super) sampling: Option<[usize; 2]>,
    /// MCUs between restart markers, or 0.
    pub(super) restart_interval: usize,
    /// Divisor of the lowest coefficients; higher ones have greater divisors.
    pub(super) quality: i32,
    /// Chooses the codes.
    pub(super) seed: u64,
}

/// A picture `[height, width, 3]`, YCbCr, with edges and slopes.
pub(super) fn picture([height, width]: [u32; 2], rng: &mut Philox) -> Vec<u8> {
    let [a, b, c] = [0; 3].map(|_: i32| rng.below(60) as usize + 4);
    let pixels = (0..height as usize).flat_map(|y| (0..width as usize).map(move |x| (x, y)));
    let colours =
        pixels.map(|(x, y)| [(x * a + y * b) % 256, x * y / c % 256, if (x / 9 + y / 7) % 2 == 0 { 60 } else { 150 }]);
    colours.flatten().map(|value| value as u8).collect()
}

/// Codes `(bits, length)` by symbol.
struct Codes([(u32, u32); 256]);

impl Codes {
    /// Short codes for some symbols, long ones for the others, and the segment that tells them.
    fn new(class: u8, symbols: &mut [u8], rng: u64) -> (Self, Vec<u8>) {
        let turn = rng as usize % symbols.len();
        symbols.rotate_left(turn);
        // Number of codes of each length; the last length takes all that are left.
        let counts: [usize; 16] = match symbols.len() {
            16 => [0, 1, 1, 1, 2, 2, 3, 6, 0, 0, 0, 0, 0, 0, 0, 0],
            _ => [0, 1, 1, 1, 2, 3, 5, 8, 12, 16, 16, 16, 16, 16, 16, symbols.len() - 129],
        };
        let (mut codes, mut next, mut at) = ([(0, 0); 256], 0, 0);
        for (length, &count) in (1..).zip(&counts) {
            for &symbol in &symbols[at..at + count] {
                codes[usize::from(symbol)] = (next, length);
                next += 1;
            }
            at += count;
            next <<= 1;
        }
        let segment = [&[class][..], &counts.map(|count| count as u8), symbols].concat();
        (Self(codes), segment)
    }
}

#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    bits: u64,
    count: u32,
}

impl Bits {
    fn push(&mut self, bits: u32, count: u32) {
        self.bits = self.bits << count | u64::from(bits);
        self.count += count;
        while self.count >= 8 {
            self.count -= 8;
            let byte = (self.bits >> self.count) as u8;
            self.bytes.push(byte);
            if byte == 0xff {
                self.bytes.push(0);
            }
        }
    }

    fn pad(&mut self) {
        let free = (8 - self.count % 8) % 8;
        self.push((1 << free) - 1, free);
    }

    fn push_number(&mut self, codes: &Codes, zeros: u32, value: i32) {
        let size = 32 - value.unsigned_abs().leading_zeros();
        let (code, length) = codes.0[(zeros << 4 | size) as usize];
        self.push(code, length);
        let number = if value < 0 { value + (1 << size) - 1 } else { value };
        self.push(number as u32, size);
    }
}

impl Encoder {
    fn divisor(&self, row: usize, column: usize) -> i32 {
        self.quality + (row + column) as i32 * self.quality / 3
    }

    /// A file of `pixels` `[height, width, 3]`, YCbCr.
    pub(super) fn encode(&self, pixels: &[u8], [height, width]: [u32; 2]) -> Vec<u8> {
        let zigzag: Vec<(usize, usize)> = (0..15)
            .flat_map(|sum: usize| {
                let diagonal = (0..8).filter(move |row| (0..8).contains(&sum.wrapping_sub(*row)));
                let mut places: Vec<_> = diagonal.map(|row| (row, sum - row)).collect();
                if sum.is_multiple_of(2) {
                    places.reverse();
                }
                places
            })
            .collect();
        let (dc, dc_segment) = Codes::new(0x00, &mut (0..16).collect::<Vec<_>>(), self.seed);
        let mut symbols: Vec<u8> =
            (0..=255).filter(|symbol| symbol & 15 != 0 && symbol & 15 < 13 || [0, 0xf0].contains(symbol)).collect();
        let (ac, ac_segment) = Codes::new(0x10, &mut symbols, self.seed / 3);

        let mut bytes = vec![0xff, 0xd8];
        let mut segment = |marker: u8, content: &[u8]| {
            bytes.extend([0xff, marker]);
            bytes.extend((content.len() as u16 + 2).to_be_bytes());
            bytes.extend(content);
        };
        let divisors: Vec<u8> = zigzag.iter().map(|&(row, column)| self.divisor(row, column) as u8).collect();
        segment(0xdb, &[&[0][..], &divisors].concat());
        let [across, down] = self.sampling.unwrap_or([1, 1]);
        let components = if self.sampling.is_some() { 3 } else { 1 };
        let mut frame = vec![8];
        frame.extend((height as u16).to_be_bytes());
        frame.extend((width as u16).to_be_bytes());
        frame.push(components);
        for id in 1..=components {
            frame.extend([id, if id == 1 { (across << 4 | down) as u8 } else { 0x11 }, 0]);
        }
        segment(0xc0, &frame);
        segment(0xc4, &dc_segment);
        segment(0xc4, &ac_segment);
        if self.restart_interval > 0 {
            segment(0xdd, &(self.restart_interval as u16).to_be_bytes());
        }
        let scan: Vec<u8> = (1..=components).flat_map(|id| [id, 0]).collect();
        segment(0xda, &[&[components][..], &scan, &[0, 63, 0]].concat());

        let (width, height) = (width as usize, height as usize);
        let sample = |component: usize, x: usize, y: usize| {
            let (x, y) = (x.min(width - 1), y.min(height - 1));
            f64::from(pixels[(y * width + x) * 3 + component]) - 128.0
        };
        let mcus = [width.div_ceil(8 * across), height.div_ceil(8 * down)];
        let (mut bits, mut last) = (Bits::default(), [0; 3]);
        for mcu in 0..mcus[0] * mcus[1] {
            if self.restart_interval > 0 && mcu > 0 && mcu % self.restart_interval == 0 {
                bits.pad();
                bits.bytes.extend([0xff, 0xd0 + ((mcu / self.restart_interval - 1) % 8) as u8]);
                last = [0; 3];
            }
            for (component, last) in last.iter_mut().enumerate().take(usize::from(components)) {
                let (blocks, scale) = if component == 0 { ([across, down], [1, 1]) } else { ([1, 1], [across, down]) };
                for block in 0..blocks[0] * blocks[1] {
                    let left = (mcu % mcus[0] * blocks[0] + block % blocks[0]) * 8;
                    let top = (mcu / mcus[0] * blocks[1] + block / blocks[0]) * 8;
                    let samples: [[f64; 8]; 8] = std::array::from_fn(|y| {
                        std::array::from_fn(|x| sample(component, (left + x) * scale[0], (top + y) * scale[1]))
                    });
                    let coefficients = forward(&samples);
                    let mut zeros = 0;
                    for (index, &(row, column)) in zigzag.iter().enumerate() {
                        let value = (coefficients[row][column] / f64::from(self.divisor(row, column))).round() as i32;
                        if index == 0 {
                            bits.push_number(&dc, 0, value - *last);
                            *last = value;
                        } else if value == 0 {
                            zeros += 1;
                        } else {
                            for _ in 0..zeros / 16 {
                                bits.push(ac.0[0xf0].0, ac.0[0xf0].1);
                            }
                            bits.push_number(&ac, zeros % 16, value);
                            zeros = 0;
                        }
                    }
                    if zeros > 0 {
                        bits.push(ac.0[0].0, ac.0[0].1);
                    }
                }
            }
        }
        bits.pad();
        bytes.extend(bits.bytes);
        bytes.extend([0xff, 0xd9]);
        bytes
    }
}

/// The discrete cosine transform by its definition (ITU-T T.81, A.3.3).
fn forward(samples: &[[f64; 8]; 8]) -> [[f64; 8]; 8] {
    let cosine = |x: usize, index: usize| {
        let scale = if index == 0 { FRAC_1_SQRT_2 } else { 1.0 };
        ((2 * x + 1) as f64 * index as f64 * PI / 16.0).cos() * scale / 2.0
    };
    let across: [[f64; 8]; 8] =
        samples.map(|row| std::array::from_fn(|index| (0..8).map(|x| row[x] * cosine(x, index)).sum()));
    std::array::from_fn(|index| {
        std::array::from_fn(|column| (0..8).map(|y| across[y][column] * cosine(y, index)).sum())
    })
}
