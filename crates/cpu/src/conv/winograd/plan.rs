//! How a convolution is cut into tiles, blocks and tasks. Shapes alone decide.

use std::ops::Range;

use super::Direction;
use super::points::{OUTPUTS, POSITIONS};
use crate::conv::ConvDesc;
use crate::gemm::{LINE, MAX_DEPTH, MAX_PANEL, ROW_STRIDE, RowBlocks, TASKS, even_chunks, odd_lines, packed_len};

/// Tiles that a block has at least, where an image or the batch has them: the transformed weights are read once for
/// each block.
const BLOCK_TILES: usize = 14;

/// Most tiles that are multiplied at once.
pub(super) const MAX_TILES: usize = 64;

/// Elements of the products of a piece of columns, which stay in the second-level cache until they are transformed.
const PRODUCTS: usize = 64 * 1024;

/// The convolution that is computed. The data gradient is the forward convolution of the output gradient with the
/// kernel rotated by 180 degrees and its channels swapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Problem {
    pub images: usize,
    /// Height and width of the images that are read.
    pub input: [usize; 2],
    pub channels: usize,
    /// Height and width of the images that are written.
    pub output: [usize; 2],
    /// Channels that are written.
    pub cols: usize,
    /// Zeros above and left of the input; negative where it is not read from its first line or pixel on.
    pub pad: [isize; 2],
}

impl Problem {
    pub(super) fn new(d: &ConvDesc, direction: Direction) -> Problem {
        let pad = d.pad.map(|pad| pad as isize);
        let (x, y) = ([d.h, d.w], [d.oh, d.ow]);
        match direction {
            Direction::Forward => Problem { images: d.n, input: x, channels: d.c_in, output: y, cols: d.c_out, pad },
            Direction::DataGrad => {
                let pad = pad.map(|pad| 2 - pad);
                Problem { images: d.n, input: y, channels: d.c_out, output: x, cols: d.c_in, pad }
            }
        }
    }

    pub(super) fn input_len(&self) -> usize {
        self.images * self.input[0] * self.input[1] * self.channels
    }

    pub(super) fn output_rows(&self) -> usize {
        self.images * self.output[0] * self.output[1]
    }

    pub(super) fn output_len(&self) -> usize {
        self.output_rows() * self.cols
    }

    /// Rows and columns of the tiles of an image.
    pub(super) fn tiles(&self) -> [usize; 2] {
        self.output.map(|size| size.div_ceil(OUTPUTS))
    }

    /// Tiles of an image.
    pub(super) fn image_tiles(&self) -> usize {
        self.tiles()[0] * self.tiles()[1]
    }

    /// Tiles of all images.
    pub(super) fn all_tiles(&self) -> usize {
        self.images * self.image_tiles()
    }

    /// Image, first line and first pixel in the output of a tile; tiles are counted in `[N, rows, columns]` order.
    #[inline(always)]
    pub(super) fn tile(&self, index: usize) -> (usize, usize, usize) {
        let [rows, columns] = self.tiles();
        let (line, column) = (index / columns, index % columns);
        (line / rows, line % rows * OUTPUTS, column * OUTPUTS)
    }

    /// Elements from the weights of one position to those of the next. Not a multiple of a large power of two, so
    /// that positions fall into different cache sets.
    pub(super) fn weights_stride(&self) -> usize {
        odd_lines(packed_len(self.channels, self.cols))
    }
}

/// How a problem is cut: row blocks of the output, each with all its tiles, times groups of columns are the tasks;
/// a task multiplies its tiles in passes, and in each pass its columns in pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub problem: Problem,
    /// Runs of output pixels.
    pub blocks: RowBlocks,
    /// Tiles of each block but the last.
    pub block_tiles: usize,
    pub groups: RowBlocks,
    /// Tiles of a pass of a block.
    pub passes: RowBlocks,
    /// Columns that are multiplied at once.
    pub chunk_cols: usize,
    pub layout: InputLayout,
}

impl Plan {
    pub(super) fn new(problem: Problem) -> Plan {
        let (blocks, block_tiles) = row_blocks(&problem);
        let groups = column_groups(blocks.count, problem.cols);
        let passes = even_chunks(block_tiles, MAX_TILES, 1);
        let layout = InputLayout::new(problem.channels, passes.rows);
        let chunk_limit = (PRODUCTS / (POSITIONS * passes.rows)).max(MAX_PANEL) / MAX_PANEL * MAX_PANEL;
        let chunk_cols = even_chunks(groups.rows, chunk_limit, MAX_PANEL).rows;
        Plan { problem, blocks, block_tiles, groups, passes, chunk_cols, layout }
    }

    /// Whether the transformed input is shared by all tasks, transformed before the first of them. Otherwise each
    /// task transforms the input of its block.
    pub(super) fn shares_input(&self) -> bool {
        self.groups.count > 1
    }

    /// Tiles of pass `pass` of a block.
    pub(super) fn pass(&self, block: usize, pass: usize) -> Range<usize> {
        let start = block * self.block_tiles;
        let end = self.problem.all_tiles().min(start + self.block_tiles);
        let range = self.passes.range(pass, self.block_tiles);
        end.min(start + range.start)..end.min(start + range.end)
    }

    /// Elements from the products of one position to those of the next.
    pub(super) fn products_stride(&self, tiles: usize, cols: usize) -> usize {
        odd_lines(tiles * cols.next_multiple_of(MAX_PANEL))
    }

    /// Most elements of the products of a pass.
    pub(super) fn products_len(&self) -> usize {
        POSITIONS * self.products_stride(self.passes.rows, self.chunk_cols)
    }
}

/// The row blocks and the tiles of one: a number of lines of tiles that divides an image, or some images.
fn row_blocks(problem: &Problem) -> (RowBlocks, usize) {
    let [lines, columns] = problem.tiles();
    let [height, width] = problem.output;
    if height.is_multiple_of(OUTPUTS) {
        let wanted = BLOCK_TILES.div_ceil(columns.max(1));
        if let Some(lines) = (wanted..lines).find(|&part| lines.is_multiple_of(part)) {
            return (RowBlocks::new(problem.output_rows(), lines * OUTPUTS * width), lines * columns);
        }
    }
    let wanted = BLOCK_TILES.div_ceil(problem.image_tiles().max(1));
    let images = problem.images.div_ceil(problem.images.div_ceil(wanted).max(1));
    (RowBlocks::new(problem.output_rows(), images * height * width), images * problem.image_tiles())
}

/// Columns of each task of a row block.
fn column_groups(blocks: usize, cols: usize) -> RowBlocks {
    let wanted = if blocks >= TASKS - 4 { 1 } else { TASKS.div_ceil(blocks.max(1)) };
    let groups = wanted.min(cols.div_ceil(MAX_PANEL)).max(1);
    RowBlocks::new(cols, cols.div_ceil(groups).next_multiple_of(MAX_PANEL))
}

/// Where transformed tiles lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct InputLayout {
    /// Channels that are multiplied at once.
    pub chunks: RowBlocks,
    /// Distance of the chunks.
    pub chunk_stride: usize,
    /// Distance of the tiles.
    pub tile_stride: usize,
    /// Positions in a row, and their distance.
    beside: usize,
    width: usize,
    /// Distance of the rows' blocks of one tile after the other.
    stride: usize,
}

impl InputLayout {
    /// Rows of one or more positions side by side, at the matmul tile's row distance,
    /// `[chunks of channels, positions / beside, tiles, beside, channels of a chunk]`.
    fn new(channels: usize, tiles: usize) -> InputLayout {
        let chunks = even_chunks(channels, MAX_DEPTH, LINE);
        let width = chunks.rows.next_multiple_of(LINE).max(LINE);
        let beside = MAX_DEPTH / width;
        let stride = odd_lines(tiles * ROW_STRIDE);
        let chunk_stride = POSITIONS.div_ceil(beside) * stride;
        InputLayout { chunks, chunk_stride, tile_stride: ROW_STRIDE, beside, width, stride }
    }

    /// Panels of `width` channels, `[positions, panels, tiles, channels of a panel]`.
    pub(super) fn panels(channels: usize, width: usize, tiles: usize) -> InputLayout {
        let chunks = RowBlocks::new(channels, width);
        let chunk_stride = tiles * width;
        let stride = odd_lines(chunks.count * chunk_stride);
        InputLayout { chunks, chunk_stride, tile_stride: width, beside: 1, width, stride }
    }

    /// Offset of the first tile's element.
    #[inline(always)]
    pub(super) fn offset(&self, chunk: usize, position: usize) -> usize {
        chunk * self.chunk_stride + position / self.beside * self.stride + position % self.beside * self.width
    }

    pub(super) fn len(&self) -> usize {
        (self.chunks.count * self.chunk_stride).max(POSITIONS.div_ceil(self.beside) * self.stride)
    }
}

/// Which of the `pixels` along one side of a tile that begins at `start` lie inside the image.
#[inline(always)]
pub(super) fn inside(start: isize, size: usize, pixels: usize) -> Range<usize> {
    let first = (-start).clamp(0, pixels as isize) as usize;
    let last = (size as isize - start).clamp(first as isize, pixels as isize) as usize;
    first..last
}
