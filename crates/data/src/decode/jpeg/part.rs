//! A part of a picture, decoded on its own.

use std::ops::Range;

use super::bits::{Reader, Segments};
use super::block::{Coefficients, Damaged, Tables, pass_block, read_block};
use super::colour::{blend, convert, double, repeat};
use super::header::{Component, Header, MAX_COMPONENTS};
use super::idct::{self, Samples};
use crate::resize::Region;

/// By how much a picture is made smaller along each axis while it is decoded: each pixel is the mean of a square.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shrink {
    By1,
    By2,
    By4,
    By8,
}

impl Shrink {
    /// Pixels of the file along a side of the square.
    pub(crate) fn factor(self) -> u32 {
        1 << self as u32
    }
}

/// Memory that is kept from one picture to the next.
#[derive(Default)]
pub(crate) struct PartBuffers {
    segments: Segments,
    tables: [Box<Tables>; MAX_COMPONENTS],
    planes: [Vec<u8>; MAX_COMPONENTS],
    rows: [ChromaRows; 2],
}

/// A row of chroma on its way to the resolution of luma.
#[derive(Default)]
struct ChromaRows {
    blended: Vec<u8>,
    doubled: Vec<u8>,
}

/// Decodes the part of a picture under `region`, made smaller by `shrink`, into `pixels` `[height, width, 3]`, resizing the
/// vector, and returns where it is: in pixels of the smaller picture, with parts of pixels included.
///
/// What comes before the part is read only to find where the part begins, and not at all where restart markers tell it; what
/// follows the part is not read. Damage there goes unnoticed.
///
/// `None` if anything read is out of the ordinary: then the file must be decoded as a whole to find what it is worth.
///
/// # Panics
/// If the region is empty or leaves the picture.
pub(crate) fn decode_part(
    header: &Header<'_>,
    region: Region,
    shrink: Shrink,
    buffers: &mut PartBuffers,
    pixels: &mut Vec<u8>,
) -> Option<Region> {
    let part = Part::new(header, region, shrink);
    buffers.segments.read(header.scan, header.restart_interval != 0);
    for (component, tables) in header.components().iter().zip(&mut buffers.tables) {
        let (divisors, dc, ac) = header.tables(component)?;
        tables.divisors = *divisors;
        tables.dc.fill(&dc, false);
        if tables.ac.fill(&ac, true) {
            tables.runs.fill(&tables.ac);
        }
    }
    pixels.resize(part.columns.len() * part.rows.len() * 3, 0);
    part.decode(buffers, pixels).ok()?;
    Some(Region {
        left: part.columns.start as u32,
        top: part.rows.start as u32,
        width: part.columns.len() as u32,
        height: part.rows.len() as u32,
    })
}

/// A component of the part.
#[derive(Debug, Clone, Copy, Default)]
struct Layout {
    /// Blocks of an MCU across and down.
    across: usize,
    down: usize,
    /// Samples along a side of a decoded block.
    side: usize,
    /// Pixels for each sample, across and down: 1 or 2.
    width: usize,
    height: usize,
}

/// What is decoded of a picture. Pixels are those of the smaller picture.
struct Part {
    layouts: [Layout; MAX_COMPONENTS],
    num_components: usize,
    /// Columns and rows of pixels.
    columns: Range<usize>,
    rows: Range<usize>,
    /// Columns and rows of MCUs that are transformed.
    mcu_columns: Range<usize>,
    mcu_rows: Range<usize>,
    /// MCUs of the picture across and down.
    mcus: [usize; 2],
    restart_interval: usize,
}

impl Layout {
    fn new(component: &Component, most_across: usize, most_down: usize, shrink: usize) -> Self {
        let Component { across, down, .. } = *component;
        let mut layout = Self { across, down, side: 8 / shrink, width: most_across / across, height: most_down / down };
        // Chroma of a smaller picture is decoded to its resolution if it has that many samples.
        if layout.side < 8 && layout.width == 2 && layout.height == 2 {
            layout = Self { side: layout.side * 2, width: 1, height: 1, ..layout };
        }
        layout
    }

    /// The samples, along an axis with `scale` pixels each, that are needed for `pixels`: with neighbours if they are blended.
    fn samples(pixels: &Range<usize>, scale: usize, len: usize) -> Range<usize> {
        match scale {
            1 => pixels.clone(),
            _ => (pixels.start / 2).saturating_sub(1)..((pixels.end - 1) / 2 + 2).min(len),
        }
    }

    fn sample_columns(&self, part: &Part) -> Range<usize> {
        Self::samples(&part.columns, self.width, part.mcus[0] * self.across * self.side)
    }

    fn sample_rows(&self, part: &Part) -> Range<usize> {
        Self::samples(&part.rows, self.height, part.mcus[1] * self.down * self.side)
    }

    /// Columns of samples of the part's plane.
    fn stride(&self, part: &Part) -> usize {
        part.mcu_columns.len() * self.across * self.side
    }
}

/// The smallest range of whole `unit`s that holds `range`, in units.
fn units(range: Range<usize>, unit: usize) -> Range<usize> {
    range.start / unit..range.end.div_ceil(unit)
}

fn union(a: Range<usize>, b: Range<usize>) -> Range<usize> {
    a.start.min(b.start)..a.end.max(b.end)
}

impl Part {
    fn new(header: &Header<'_>, region: Region, shrink: Shrink) -> Self {
        let components = header.components();
        let shrink = shrink.factor() as usize;
        let most_across = components.iter().map(|component| component.across).max().unwrap_or(1);
        let most_down = components.iter().map(|component| component.down).max().unwrap_or(1);
        let [height, width] = header.size();
        let Region { left, top, width: columns, height: rows } = region;
        assert!(
            columns > 0 && rows > 0 && left + columns <= width && top + rows <= height,
            "{region:?} leaves the picture"
        );
        let span = |start: u32, len: u32| start as usize..(start + len) as usize;
        let mut layouts = [Layout::default(); MAX_COMPONENTS];
        for (layout, component) in layouts.iter_mut().zip(components) {
            *layout = Layout::new(component, most_across, most_down, shrink);
        }
        let mut part = Self {
            layouts,
            num_components: components.len(),
            columns: units(span(left, columns), shrink),
            rows: units(span(top, rows), shrink),
            mcu_columns: 0..0,
            mcu_rows: 0..0,
            mcus: [(width as usize).div_ceil(8 * most_across), (height as usize).div_ceil(8 * most_down)],
            restart_interval: header.restart_interval,
        };
        let columns =
            part.layouts().iter().map(|layout| units(layout.sample_columns(&part), layout.across * layout.side));
        let rows = part.layouts().iter().map(|layout| units(layout.sample_rows(&part), layout.down * layout.side));
        (part.mcu_columns, part.mcu_rows) =
            (columns.reduce(union).unwrap_or_default(), rows.reduce(union).unwrap_or_default());
        part
    }

    fn layouts(&self) -> &[Layout] {
        &self.layouts[..self.num_components]
    }

    /// Decodes with the fastest instructions of the processor.
    fn decode(&self, buffers: &mut PartBuffers, pixels: &mut [u8]) -> Result<(), Damaged> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") {
            // SAFETY: the processor was found to have these instructions.
            #[allow(unsafe_code)]
            return unsafe { self.decode_avx2(buffers, pixels) };
        }
        self.decode_portable(buffers, pixels)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn decode_avx2(&self, buffers: &mut PartBuffers, pixels: &mut [u8]) -> Result<(), Damaged> {
        self.decode_with(buffers, pixels, |block| idct::avx2(block))
    }

    fn decode_portable(&self, buffers: &mut PartBuffers, pixels: &mut [u8]) -> Result<(), Damaged> {
        self.decode_with(buffers, pixels, idct::portable)
    }

    /// Inlined, so that all of it is compiled with the instructions of the caller.
    #[inline(always)]
    fn decode_with(
        &self,
        buffers: &mut PartBuffers,
        pixels: &mut [u8],
        transform: impl Fn(&Coefficients) -> Samples,
    ) -> Result<(), Damaged> {
        self.read_planes(buffers, transform)?;
        self.write_pixels(buffers, pixels);
        Ok(())
    }

    /// Whether any of these MCUs is transformed.
    fn holds_any(&self, mcus: &Range<usize>) -> bool {
        let [per_row, _] = self.mcus;
        units(mcus.clone(), per_row).any(|row| {
            let columns = mcus.start.saturating_sub(row * per_row)..(mcus.end - row * per_row).min(per_row);
            self.mcu_rows.contains(&row) && columns.start < self.mcu_columns.end && self.mcu_columns.start < columns.end
        })
    }

    /// Reads the coefficients and transforms those of the part.
    #[inline(always)]
    fn read_planes(
        &self,
        buffers: &mut PartBuffers,
        transform: impl Fn(&Coefficients) -> Samples,
    ) -> Result<(), Damaged> {
        let PartBuffers { segments, tables, planes, .. } = buffers;
        for (layout, plane) in self.layouts().iter().zip(planes.iter_mut()) {
            plane.resize(layout.stride(self) * self.mcu_rows.len() * layout.down * layout.side, 0);
        }
        let [per_row, rows] = self.mcus;
        let total = per_row * rows;
        let end = (self.mcu_rows.end - 1) * per_row + self.mcu_columns.end;
        let interval = if self.restart_interval == 0 { total } else { self.restart_interval };
        for (index, first) in (0..end).step_by(interval).enumerate() {
            let mcus = first..(first + interval).min(total);
            if index >= segments.len() {
                return Err(Damaged);
            }
            if !self.holds_any(&mcus) {
                continue;
            }
            let (mut reader, bits) = segments.reader(index);
            self.read_mcus(mcus.start..mcus.end.min(end), &mut reader, tables, planes, &transform)?;
            // Where an interval is read to its end, fewer than 8 bits fill its last byte.
            let unread = bits.checked_sub(reader.bits_read()).ok_or(Damaged)?;
            if mcus.end <= end && unread >= 8 {
                return Err(Damaged);
            }
        }
        let is_over = segments.is_ended() && segments.len() == total.div_ceil(interval);
        if end < total || is_over { Ok(()) } else { Err(Damaged) }
    }

    /// Reads MCUs that begin an interval.
    #[inline(always)]
    fn read_mcus(
        &self,
        mcus: Range<usize>,
        reader: &mut Reader<'_>,
        tables: &[Box<Tables>; MAX_COMPONENTS],
        planes: &mut [Vec<u8>; MAX_COMPONENTS],
        transform: impl Fn(&Coefficients) -> Samples,
    ) -> Result<(), Damaged> {
        let [per_row, _] = self.mcus;
        let (mut row, mut column) = (mcus.start / per_row, mcus.start % per_row);
        let mut dc = [0; MAX_COMPONENTS];
        let mut block = [0; 64];
        for _ in mcus {
            let is_wanted = self.mcu_rows.contains(&row) && self.mcu_columns.contains(&column);
            let components = self.layouts().iter().zip(tables).zip(planes.iter_mut()).zip(&mut dc);
            for (((layout, tables), plane), dc) in components {
                let stride = layout.stride(self);
                for number in 0..layout.across * layout.down {
                    if !is_wanted {
                        pass_block(reader, tables, dc)?;
                        continue;
                    }
                    let has_ac = read_block(reader, tables, dc, &mut block)?;
                    let samples = match layout.side {
                        _ if !has_ac => idct::flat(block[0]),
                        8 => transform(&block),
                        4 => idct::reduced::<4>(&block),
                        2 => idct::reduced::<2>(&block),
                        _ => idct::flat(block[0]),
                    };
                    block = [0; 64];
                    let down = (row - self.mcu_rows.start) * layout.down + number / layout.across;
                    let across = (column - self.mcu_columns.start) * layout.across + number % layout.across;
                    let start = (down * stride + across) * layout.side;
                    store(&samples, layout.side, &mut plane[start..], stride);
                }
            }
            column += 1;
            if column == per_row {
                (row, column) = (row + 1, 0);
            }
        }
        Ok(())
    }

    /// Brings the components to one resolution and to RGB.
    #[inline(always)]
    fn write_pixels(&self, buffers: &mut PartBuffers, pixels: &mut [u8]) {
        let PartBuffers { planes, rows, .. } = buffers;
        let [luma, chroma @ ..] = &self.layouts;
        let [luma_plane, chroma_planes @ ..] = planes;
        let luma_start = self.columns.start - self.mcu_columns.start * luma.across * luma.side;
        let luma_top = self.mcu_rows.start * luma.down * luma.side;
        let luma_stride = luma.stride(self);
        for (y, out) in self.rows.clone().zip(pixels.chunks_exact_mut(self.columns.len() * 3)) {
            let luma_row = &luma_plane[(y - luma_top) * luma_stride + luma_start..][..self.columns.len()];
            if self.num_components == 1 {
                repeat(luma_row, out);
                continue;
            }
            let [cb, cr] = rows;
            let cb = self.chroma_row(&chroma[0], &chroma_planes[0], y, cb);
            let cr = self.chroma_row(&chroma[1], &chroma_planes[1], y, cr);
            convert(luma_row, cb, cr, out);
        }
    }

    /// The samples of chroma for the pixels of row `y`.
    #[inline(always)]
    fn chroma_row<'a>(
        &self,
        layout: &Layout,
        plane: &'a [u8],
        y: usize,
        ChromaRows { blended, doubled }: &'a mut ChromaRows,
    ) -> &'a [u8] {
        let (columns, stride) = (layout.sample_columns(self), layout.stride(self));
        let start = columns.start - self.mcu_columns.start * layout.across * layout.side;
        let top = self.mcu_rows.start * layout.down * layout.side;
        let row = |y: usize| &plane[(y - top) * stride + start..][..columns.len()];
        let row = if layout.height == 1 {
            row(y)
        } else {
            let last = self.mcus[1] * layout.down * layout.side - 1;
            let near = y / 2;
            let far = if y.is_multiple_of(2) { near.saturating_sub(1) } else { (near + 1).min(last) };
            blended.resize(columns.len(), 0);
            blend(row(near), row(far), blended);
            &*blended
        };
        if layout.width == 1 {
            return row;
        }
        doubled.resize(columns.len() * 2, 0);
        double(row, doubled);
        &doubled[self.columns.start - columns.start * 2..][..self.columns.len()]
    }
}

/// Writes a block into a plane that begins at its first sample.
#[inline(always)]
fn store(samples: &Samples, side: usize, plane: &mut [u8], stride: usize) {
    let rows = plane.chunks_mut(stride).zip(samples);
    match side {
        8 => rows.for_each(|(to, from)| to[..8].copy_from_slice(from)),
        _ => rows.take(side).for_each(|(to, from)| to[..side].copy_from_slice(&from[..side])),
    }
}
