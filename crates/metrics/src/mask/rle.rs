use super::MaskError;

/// Positions must fit in 31 bits, as in pycocotools.
pub(super) const MAX_PIXELS: u32 = i32::MAX as u32;

/// A binary mask `[height, width]`, stored as run lengths in column-major order.
///
/// Runs of background and object alternate, beginning with background; a run may be empty. The lengths sum to the number
/// of pixels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Rle {
    height: u32,
    width: u32,
    counts: Vec<u32>,
}

/// How masks are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// Pixels in any of the masks.
    Union,
    /// Pixels in all of the masks.
    Intersection,
}

impl Rle {
    /// Creates a mask from its run lengths.
    ///
    /// # Errors
    ///
    /// If a side is 0, the mask has more than 2^31 - 1 pixels, or the run lengths do not sum to its number of pixels.
    pub fn new(height: u32, width: u32, counts: Vec<u32>) -> Result<Self, MaskError> {
        let pixels = pixels(height, width)?;
        let covered: u64 = counts.iter().copied().map(u64::from).sum();
        if covered != u64::from(pixels) {
            return Err(MaskError::Covered { covered, height, width });
        }
        Ok(Self { height, width, counts })
    }

    /// Encodes a row-major bitmap `[height, width]` in which the object's pixels are not 0.
    ///
    /// # Errors
    ///
    /// If a side is 0, the mask has more than 2^31 - 1 pixels, or the bitmap has another size.
    pub fn encode(height: u32, width: u32, bitmap: &[u8]) -> Result<Self, MaskError> {
        if bitmap.len() != pixels(height, width)? as usize {
            return Err(MaskError::Bitmap { pixels: bitmap.len(), height, width });
        }
        let mut counts = Vec::new();
        let (mut run, mut is_object) = (0, false);
        for column in 0..width as usize {
            for &pixel in bitmap[column..].iter().step_by(width as usize) {
                if (pixel != 0) != is_object {
                    counts.push(run);
                    (run, is_object) = (0, !is_object);
                }
                run += 1;
            }
        }
        counts.push(run);
        Ok(Self { height, width, counts })
    }

    /// Decodes the mask to a row-major bitmap `[height, width]` of 1 (object) and 0 (background).
    pub fn decode(&self) -> Vec<u8> {
        let (height, width) = (self.height as usize, self.width as usize);
        let mut bitmap = vec![0; height * width];
        for (start, end) in self.object_runs() {
            for position in start as usize..end as usize {
                bitmap[position % height * width + position / height] = 1;
            }
        }
        bitmap
    }

    /// Merges masks of one size.
    ///
    /// # Errors
    ///
    /// If there is no mask, or two of them differ in size.
    pub fn merge(masks: &[Self], how: Merge) -> Result<Self, MaskError> {
        let (first, rest) = masks.split_first().ok_or(MaskError::Nothing)?;
        rest.iter().try_fold(first.clone(), |merged, mask| merged.merged_with(mask, how))
    }

    fn merged_with(&self, other: &Self, how: Merge) -> Result<Self, MaskError> {
        self.same_size(other)?;
        let (mut a, mut b) = (Runs::new(&self.counts), Runs::new(&other.counts));
        let (mut counts, mut run, mut is_object) = (Vec::new(), 0, false);
        loop {
            let step = a.left.min(b.left);
            run += step;
            a.advance(step);
            b.advance(step);
            let before = is_object;
            is_object = match how {
                Merge::Union => a.is_object || b.is_object,
                Merge::Intersection => a.is_object && b.is_object,
            };
            let is_end = a.is_at_end() && b.is_at_end();
            if is_object != before || is_end {
                counts.push(run);
                run = 0;
            }
            if is_end {
                return Ok(Self { counts, ..*self });
            }
        }
    }

    /// Number of object pixels.
    pub fn area(&self) -> u32 {
        self.counts.iter().skip(1).step_by(2).sum()
    }

    /// The smallest box around the object as `[x, y, width, height]` in pixels, zeros if there is no object.
    pub fn bounding_box(&self) -> [f64; 4] {
        let height = self.height;
        let (mut left, mut top, mut right, mut bottom) = (u32::MAX, u32::MAX, 0, 0);
        for (start, end) in self.object_runs() {
            let (first, last) = (start / height, (end - 1) / height);
            left = left.min(first);
            right = right.max(last + 1);
            if first == last {
                top = top.min(start % height);
                bottom = bottom.max((end - 1) % height + 1);
            } else {
                (top, bottom) = (0, height);
            }
        }
        if right == 0 {
            return [0.0; 4];
        }
        [left, top, right - left, bottom - top].map(f64::from)
    }

    /// Number of pixels in both masks.
    ///
    /// # Errors
    ///
    /// If the masks differ in size.
    pub fn intersection(&self, other: &Self) -> Result<u32, MaskError> {
        self.same_size(other)?;
        let (mut a, mut b) = (Runs::new(&self.counts), Runs::new(&other.counts));
        let mut common = 0;
        while !(a.is_at_end() && b.is_at_end()) {
            let step = a.left.min(b.left);
            if a.is_object && b.is_object {
                common += step;
            }
            a.advance(step);
            b.advance(step);
        }
        Ok(common)
    }

    /// Intersection over union with a ground truth; 0 if the masks do not intersect. For a crowd the divisor is the area
    /// of `self` alone, because a detection may cover any part of a crowd.
    ///
    /// # Errors
    ///
    /// If the masks differ in size.
    pub fn iou(&self, truth: &Self, is_crowd: bool) -> Result<f64, MaskError> {
        let common = self.intersection(truth)?;
        if common == 0 {
            return Ok(0.0);
        }
        let whole = if is_crowd { self.area() } else { self.area() - common + truth.area() };
        Ok(f64::from(common) / f64::from(whole))
    }

    /// Rows of the mask.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Columns of the mask.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Run lengths.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// First position of each run of the object that is not empty, and the position after its end; column by column.
    fn object_runs(&self) -> impl Iterator<Item = (u32, u32)> {
        let mut position = 0;
        let runs = self.counts.iter().enumerate().map(move |(index, &count)| {
            position += count;
            (index, position - count, position)
        });
        runs.filter(|&(index, start, end)| index % 2 == 1 && start < end).map(|(_, start, end)| (start, end))
    }

    fn same_size(&self, other: &Self) -> Result<(), MaskError> {
        let (ours, theirs) = ([self.height, self.width], [other.height, other.width]);
        if ours == theirs { Ok(()) } else { Err(MaskError::Sizes(ours, theirs)) }
    }
}

/// Number of pixels of a mask.
pub(super) fn pixels(height: u32, width: u32) -> Result<u32, MaskError> {
    let pixels = height.checked_mul(width).filter(|pixels| (1..=MAX_PIXELS).contains(pixels));
    pixels.ok_or(MaskError::Size { height, width })
}

/// A cursor over runs. An empty run is visited as well, as in pycocotools, whose merged masks keep such runs.
struct Runs<'a> {
    /// Pixels to the end of the current run.
    left: u32,
    /// Whether the current run is of the object.
    is_object: bool,
    /// Runs after the current one.
    rest: std::slice::Iter<'a, u32>,
}

impl<'a> Runs<'a> {
    fn new(counts: &'a [u32]) -> Self {
        let mut rest = counts.iter();
        Self { left: rest.next().copied().unwrap_or(0), is_object: false, rest }
    }

    fn is_at_end(&self) -> bool {
        self.left == 0 && self.rest.len() == 0
    }

    /// Advances by `step` pixels, at most `left`.
    fn advance(&mut self, step: u32) {
        self.left -= step;
        if self.left == 0
            && let Some(&next) = self.rest.next()
        {
            self.left = next;
            self.is_object = !self.is_object;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(rows: &[&str]) -> Rle {
        let bitmap: Vec<u8> = rows.concat().bytes().map(|pixel| u8::from(pixel == b'#')).collect();
        Rle::encode(rows.len() as u32, rows[0].len() as u32, &bitmap).unwrap()
    }

    #[test]
    fn runs_go_down_columns() {
        let mask = mask(&["#..", ".#.", ".##"]);
        assert_eq!(mask.counts(), [0, 1, 3, 2, 2, 1]);
        assert_eq!(mask.decode(), [1, 0, 0, 0, 1, 0, 0, 1, 1]);
        assert_eq!(mask.area(), 4);
        assert_eq!(mask.bounding_box(), [0.0, 0.0, 3.0, 3.0]);
    }

    #[test]
    fn boxes_are_tight() {
        assert_eq!(mask(&["....", ".##.", ".#..", "...."]).bounding_box(), [1.0, 1.0, 2.0, 2.0]);
        // A run that goes on into the next column touches both edges.
        assert_eq!(mask(&["..#.", "....", ".#.."]).bounding_box(), [1.0, 0.0, 2.0, 3.0]);
        assert_eq!(mask(&["...", "..."]).bounding_box(), [0.0; 4]);
        assert_eq!(Rle::new(2, 3, vec![6, 0]).unwrap().bounding_box(), [0.0; 4]);
    }

    #[test]
    fn merged_masks_have_the_pixels_of_both_bitmaps() {
        let (a, b) = (mask(&["##..", "##..", "...."]), mask(&[".##.", "...#", "####"]));
        let both = |how| Rle::merge(&[a.clone(), b.clone()], how).unwrap();
        assert_eq!(both(Merge::Union), mask(&["###.", "##.#", "####"]));
        assert_eq!(both(Merge::Intersection), mask(&[".#..", "....", "...."]));
        assert_eq!(a.intersection(&b), Ok(1));
        assert_eq!(a.iou(&b, false), Ok(1.0 / 10.0));
        assert_eq!((a.iou(&b, true), b.iou(&a, true)), (Ok(1.0 / 4.0), Ok(1.0 / 7.0)));
    }

    #[test]
    fn empty_runs_are_no_pixels() {
        let a = Rle::new(2, 3, vec![0, 2, 0, 1, 3, 0]).unwrap();
        let b = Rle::new(2, 3, vec![1, 5]).unwrap();
        assert_eq!((a.area(), a.bounding_box()), (3, [0.0, 0.0, 2.0, 2.0]));
        assert_eq!(a.intersection(&b), Ok(2));
        assert_eq!(Rle::merge(&[a, b], Merge::Union).unwrap().area(), 6);
    }

    #[test]
    fn wrong_sizes_are_refused() {
        assert_eq!(Rle::new(0, 3, vec![]), Err(MaskError::Size { height: 0, width: 3 }));
        assert_eq!(Rle::new(65536, 32768, vec![]), Err(MaskError::Size { height: 65536, width: 32768 }));
        let covered = Rle::new(2, 3, vec![1, 4]);
        assert_eq!(covered, Err(MaskError::Covered { covered: 5, height: 2, width: 3 }));
        assert!(Rle::new(2, 3, vec![u32::MAX, 7]).is_err());
        assert!(Rle::encode(2, 3, &[0; 5]).is_err());
        assert_eq!(Rle::merge(&[], Merge::Union), Err(MaskError::Nothing));
        let (small, large) = (mask(&["#"]), mask(&["##"]));
        assert_eq!(small.iou(&large, false), Err(MaskError::Sizes([1, 1], [1, 2])));
        assert!(Rle::merge(&[small, large], Merge::Union).is_err());
    }
}
