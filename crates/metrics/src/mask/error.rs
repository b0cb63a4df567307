use super::MAX_COORDINATE;
use super::rle::MAX_PIXELS;

/// Why numbers or text are not a mask.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MaskError {
    #[error("a mask of {height}x{width} pixels; expected sides of at least 1 and at most {MAX_PIXELS} pixels")]
    Size { height: u32, width: u32 },

    #[error(
        "runs that cover {covered} pixels of a mask of {height}x{width}; expected {}",
        u64::from(*height) * u64::from(*width)
    )]
    Covered { covered: u64, height: u32, width: u32 },

    #[error("`{character}` at byte {byte} of compressed runs; expected characters from `0` to `o`")]
    Character { character: char, byte: usize },

    #[error("compressed runs that end within a number, at byte {byte}")]
    Truncated { byte: usize },

    #[error("a run of {length} pixels as number {index} of compressed runs; expected 0 to {MAX_PIXELS}")]
    Run { index: usize, length: i64 },

    #[error("a bitmap of {pixels} pixels for a mask of {height}x{width}")]
    Bitmap { pixels: usize, height: u32, width: u32 },

    #[error("a polygon of {numbers} numbers; expected x and y of at least 3 points")]
    Points { numbers: usize },

    #[error(
        "a polygon with the coordinate {value} at index {index}; expected -{MAX_COORDINATE} to {MAX_COORDINATE} pixels"
    )]
    Coordinate { index: usize, value: f64 },

    #[error("a grid of {cells} cells; expected as many rows as columns")]
    Grid { cells: usize },

    #[error("a box with the coordinate {coordinate}; expected finite numbers of pixels")]
    Box { coordinate: f64 },

    #[error("no mask to merge; expected at least one")]
    Nothing,

    #[error("masks of {} and {} pixels together; expected one size", sides(.0), sides(.1))]
    Sizes([u32; 2], [u32; 2]),
}

fn sides([height, width]: &[u32; 2]) -> String {
    format!("{height}x{width}")
}
