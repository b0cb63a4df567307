//! Headers of the JPEG files whose parts are decoded on their own.

use super::{check_dimensions, has_end_of_image};

/// Components of a file: grey alone, or luma and two of chroma.
pub(super) const MAX_COMPONENTS: usize = 3;
/// Tables of one kind that a file can hold.
const TABLES: usize = 4;

const START_OF_IMAGE: [u8; 2] = [0xff, 0xd8];
const ADOBE_YCBCR: u8 = 1;

/// Sampling and tables of a component.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Component {
    id: u8,
    /// Blocks of an MCU across.
    pub(super) across: usize,
    /// Blocks of an MCU down.
    pub(super) down: usize,
    quantization: usize,
    dc: usize,
    ac: usize,
}

/// A Huffman table as it stands in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct HuffmanSpec<'a> {
    /// Number of codes of 1 to 16 bits.
    pub(super) counts: &'a [u8; 16],
    /// Symbols in the order of their codes.
    pub(super) symbols: &'a [u8],
}

/// The header of a sequential 8-bit Huffman-coded file with one scan, grey or YCbCr, whose chroma is sampled by 1 or 2 along each
/// axis.
pub(crate) struct Header<'a> {
    width: u32,
    height: u32,
    components: [Component; MAX_COMPONENTS],
    num_components: usize,
    /// Divisors of coefficients, in zigzag order.
    quantization: [Option<[i32; 64]>; TABLES],
    dc: [Option<HuffmanSpec<'a>>; TABLES],
    ac: [Option<HuffmanSpec<'a>>; TABLES],
    /// MCUs between restart markers; 0 if there are none.
    pub(super) restart_interval: usize,
    /// Entropy-coded data, and all that follows.
    pub(super) scan: &'a [u8],
}

/// Splits `count` bytes off.
fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

fn take_u16(rest: &mut &[u8]) -> Option<usize> {
    take(rest, 2).map(|bytes| usize::from(bytes[0]) << 8 | usize::from(bytes[1]))
}

impl<'a> Header<'a> {
    /// Reads a header; `None` if the file is of another kind or out of the ordinary in any way. Then nothing is known of its
    /// validity.
    pub(crate) fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&START_OF_IMAGE)?;
        if !has_end_of_image(bytes) {
            return None;
        }
        let mut header = Self {
            width: 0,
            height: 0,
            components: [Component::default(); MAX_COMPONENTS],
            num_components: 0,
            quantization: [None; TABLES],
            dc: [None; TABLES],
            ac: [None; TABLES],
            restart_interval: 0,
            scan: &[],
        };
        loop {
            let &[0xff, marker] = take(&mut rest, 2)? else { return None };
            let len = take_u16(&mut rest)?.checked_sub(2)?;
            let segment = take(&mut rest, len)?;
            match marker {
                0xc0 | 0xc1 => header.read_frame(segment)?,
                0xc4 => header.read_huffman(segment)?,
                0xdb => header.read_quantization(segment)?,
                0xdd => header.restart_interval = <[u8; 2]>::try_from(segment).ok().map(u16::from_be_bytes)?.into(),
                0xda => {
                    header.read_scan(segment)?;
                    header.scan = rest;
                    return Some(header);
                }
                0xe0..=0xef | 0xfe if is_without_effect(marker, segment) => {}
                _ => return None,
            }
        }
    }

    /// Height and width of the picture in pixels.
    pub(crate) fn size(&self) -> [u32; 2] {
        [self.height, self.width]
    }

    /// Components in the order of the scan.
    pub(super) fn components(&self) -> &[Component] {
        &self.components[..self.num_components]
    }

    /// Divisors of a component's coefficients in zigzag order, and its tables for DC and AC.
    pub(super) fn tables(&self, component: &Component) -> Option<(&[i32; 64], HuffmanSpec<'a>, HuffmanSpec<'a>)> {
        Some((self.quantization[component.quantization].as_ref()?, self.dc[component.dc]?, self.ac[component.ac]?))
    }

    fn read_frame(&mut self, segment: &[u8]) -> Option<()> {
        let (&[precision, h1, h0, w1, w0, count], components) = segment.split_first_chunk()?;
        if self.num_components != 0 || precision != 8 || ![1, 3].contains(&count) {
            return None;
        }
        (self.height, self.width) = (u16::from_be_bytes([h1, h0]).into(), u16::from_be_bytes([w1, w0]).into());
        check_dimensions(self.width.into(), self.height.into()).ok()?;
        self.num_components = usize::from(count);
        let (components, []) = components.as_chunks::<3>() else { return None };
        if components.len() != self.num_components {
            return None;
        }
        for (component, &[id, sampling, table]) in self.components.iter_mut().zip(components) {
            let (across, down) = (usize::from(sampling >> 4), usize::from(sampling & 15));
            if ![1, 2].contains(&across) || ![1, 2].contains(&down) || usize::from(table) >= TABLES {
                return None;
            }
            *component = Component { id, across, down, quantization: table.into(), dc: 0, ac: 0 };
        }
        let ids = self.components.map(|component| component.id);
        if let [grey] = &mut self.components[..self.num_components] {
            // The only component has one block in an MCU, whatever its sampling (ITU-T T.81, A.2.2).
            (grey.across, grey.down) = (1, 1);
            return Some(());
        }
        let is_chroma_single = self.components[1..].iter().all(|chroma| (chroma.across, chroma.down) == (1, 1));
        let is_ycbcr = ids != *b"RGB" && ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2];
        (is_chroma_single && is_ycbcr).then_some(())
    }

    fn read_quantization(&mut self, mut segment: &[u8]) -> Option<()> {
        while let Some(head) = take(&mut segment, 1) {
            let (is_wide, index) = (head[0] >> 4, usize::from(head[0] & 15));
            let mut table = [0; 64];
            match is_wide {
                0 => table.iter_mut().zip(take(&mut segment, 64)?).for_each(|(to, &from)| *to = from.into()),
                1 => table.iter_mut().try_for_each(|to| take_u16(&mut segment).map(|from| *to = from as i32))?,
                _ => return None,
            }
            *self.quantization.get_mut(index)? = Some(table);
        }
        Some(())
    }

    fn read_huffman(&mut self, mut segment: &'a [u8]) -> Option<()> {
        while let Some(head) = take(&mut segment, 1) {
            let (is_ac, index) = (head[0] >> 4, usize::from(head[0] & 15));
            let counts = take(&mut segment, 16)?.first_chunk()?;
            let total = counts.iter().map(|&count| usize::from(count)).sum();
            let spec = HuffmanSpec { counts, symbols: take(&mut segment, total)? };
            let tables = match is_ac {
                0 if spec.symbols.iter().all(|&symbol| symbol < 16) => &mut self.dc,
                1 => &mut self.ac,
                _ => return None,
            };
            *tables.get_mut(index)? = Some(spec).filter(HuffmanSpec::is_prefix_code);
            tables[index]?;
        }
        Some(())
    }

    fn read_scan(&mut self, segment: &[u8]) -> Option<()> {
        let (&[count], rest) = segment.split_first_chunk()?;
        let (components, spectrum) = rest.split_at_checked(usize::from(count) * 2)?;
        if self.num_components == 0 || usize::from(count) != self.num_components || spectrum != [0, 63, 0] {
            return None;
        }
        let tables = components.as_chunks::<2>().0;
        for (component, &[id, table]) in self.components.iter_mut().zip(tables) {
            (component.dc, component.ac) = (usize::from(table >> 4), usize::from(table & 15));
            if component.id != id || component.dc >= TABLES || component.ac >= TABLES {
                return None;
            }
        }
        Some(())
    }
}

impl HuffmanSpec<'_> {
    /// Whether there are codes for all symbols, none of them all ones (ITU-T T.81, annex C).
    fn is_prefix_code(&self) -> bool {
        let mut next_code = 0;
        self.symbols.len() <= 256
            && self.counts.iter().enumerate().all(|(index, &count)| {
                next_code = next_code * 2 + u32::from(count);
                count == 0 || next_code < 2 << index
            })
    }
}

/// Whether an application's segment changes nothing of how pixels are read.
fn is_without_effect(marker: u8, segment: &[u8]) -> bool {
    match marker {
        0xe0 => !segment.starts_with(b"AVI1"),
        0xe1 => !segment.starts_with(b"http://ns.adobe.com/xmp/extension/"),
        0xe2 => segment.starts_with(b"ICC_PROFILE\0"),
        0xee => !segment.starts_with(b"Adobe") || segment.get(11) == Some(&ADOBE_YCBCR),
        _ => true,
    }
}
