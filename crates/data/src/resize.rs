use crate::ShareBox;
use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{CropBox, FilterType, ResizeAlg, ResizeOptions, Resizer};

/// A rectangle of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First column of pixels.
    pub left: u32,
    /// First row of pixels.
    pub top: u32,
    /// Columns of pixels.
    pub width: u32,
    /// Rows of pixels.
    pub height: u32,
}

impl Region {
    /// All of an image.
    pub fn whole(width: u32, height: u32) -> Self {
        Self { left: 0, top: 0, width, height }
    }

    /// The part of this image, all of one, that a box of shares holds; its sides are rounded down to pixels.
    pub(crate) fn share(&self, [x1, y1, x2, y2]: &ShareBox) -> Self {
        let pixel = |share: f32, side: u32| (share * side as f32) as u32;
        let (left, top) = (pixel(*x1, self.width), pixel(*y1, self.height));
        let (right, bottom) = (pixel(*x2, self.width), pixel(*y2, self.height));
        Self { left, top, width: right.saturating_sub(left), height: bottom.saturating_sub(top) }
    }

    /// Pixels of this part.
    pub(crate) fn area(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Pixels that are in both parts.
    pub(crate) fn overlap(&self, other: &Self) -> u64 {
        let common = |start: [u32; 2], length: [u32; 2]| {
            let end = (start[0] + length[0]).min(start[1] + length[1]);
            u64::from(end.saturating_sub(start[0].max(start[1])))
        };
        common([self.left, other.left], [self.width, other.width])
            * common([self.top, other.top], [self.height, other.height])
    }
}

/// Crops `region` out of `source` `[height, width, 3]` and resizes it to `target` `[target_height, target_width, 3]`
/// with an antialiased bilinear (triangle) filter, as Pillow's `crop` followed by `resize(BILINEAR)`.
///
/// Nothing outside the region is seen by the filter.
///
/// # Panics
/// If a buffer is too small for its size, a size is zero, or the region leaves the source.
pub(crate) fn resize_region(
    resizer: &mut Resizer,
    source: &[u8],
    source_size: [u32; 2],
    region: Region,
    target: &mut [u8],
    target_size: [u32; 2],
) {
    resize(resizer, &view(source, source_size), region, bilinear(), target, target_size);
}

/// Resizes the part of `source` under `window` (which may cut pixels) to `target`, as Pillow's
/// `resize(BILINEAR, box=window)`: pixels around the window are seen by the filter.
///
/// # Panics
/// As [`resize_region`].
pub(crate) fn resize_window(
    resizer: &mut Resizer,
    source: &[u8],
    source_size: [u32; 2],
    window: CropBox,
    target: &mut [u8],
    target_size: [u32; 2],
) {
    let options = bilinear().crop(window.left, window.top, window.width, window.height);
    let whole = Region::whole(source_size[1], source_size[0]);
    resize(resizer, &view(source, source_size), whole, options, target, target_size);
}

fn bilinear() -> ResizeOptions {
    ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
}

fn view(pixels: &[u8], [height, width]: [u32; 2]) -> TypedImageRef<'_, U8x3> {
    TypedImageRef::from_buffer(width, height, pixels).expect("source buffer matches its size")
}

/// The library's functions for one pixel type and one kind of view: those that choose at run time are compiled for all
/// of them, in minutes.
fn resize(
    resizer: &mut Resizer,
    source: &TypedImageRef<'_, U8x3>,
    region: Region,
    options: ResizeOptions,
    target: &mut [u8],
    [height, width]: [u32; 2],
) {
    let cropped = TypedCroppedImage::from_ref(source, region.left, region.top, region.width, region.height)
        .expect("region lies inside the source");
    let mut target = TypedImage::<U8x3>::from_buffer(width, height, target).expect("target buffer matches its size");
    resizer.resize_typed(&cropped, &mut target, &options).expect("the window lies inside the source");
}
