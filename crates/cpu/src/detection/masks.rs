//! Masks that regions are to predict. Targets are decided by a threshold, so that all is computed in `f64`, as the reference does.

use super::{COORDINATES, box_at};
use crate::gemm::Ctx;
use crate::index::{IndexOutOfRange, check, check_optional};
use crate::parts::for_chunks;
use bessemer_ir::ops::detection::masks::MaskTargets;

/// Sizes and rules of the masks of regions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaskDesc {
    /// Size of masks, and what they are made of.
    pub rule: MaskTargets,
    /// Number of images.
    pub batch: usize,
    /// Capacity of an image's ground truths.
    pub truths: usize,
    /// Rows and columns of a crop.
    pub crop: usize,
    /// Number of regions.
    pub regions: usize,
}

/// Where a region lies.
#[derive(Clone, Copy)]
pub struct MaskRegions<'a> {
    /// `[P, 4]`
    pub boxes: &'a [f32],
    /// The image of each region.
    pub images: &'a [i32],
    /// The ground truth of each region, negative if it has none.
    pub truths: &'a [i32],
}

impl MaskDesc {
    /// Elements of a mask.
    fn mask_len(&self) -> usize {
        self.rule.size * self.rule.size
    }

    /// Elements of a crop.
    fn crop_len(&self) -> usize {
        self.crop * self.crop
    }

    /// Elements of all crops.
    pub fn crops_len(&self) -> usize {
        self.batch * self.truths * self.crop_len()
    }

    /// Elements of all masks.
    pub fn masks_len(&self) -> usize {
        self.regions * self.mask_len()
    }

    fn mask(&self, region: [f64; COORDINATES], truth: [f64; COORDINATES], crop: &[u8], mask: &mut [f32]) {
        let (size, border) = (self.rule.size, self.rule.border);
        let (y, x) = (self.rule.axis(region, truth, 0, self.crop), self.rule.axis(region, truth, 1, self.crop));
        // Positions in the padding are outside of the crop, as are those that wrap.
        let own = |pixel: usize| pixel.wrapping_sub(border);
        for (row, targets) in mask.chunks_exact_mut(size).enumerate() {
            let down = y.tap(row, 0);
            let lines = down.pixels.map(|pixel| match own(pixel) < self.crop {
                true => &crop[own(pixel) * self.crop..][..self.crop],
                false => &[],
            });
            for (col, target) in targets.iter_mut().enumerate() {
                let across = x.tap(col, 0);
                let [first, second] = lines.map(|line| {
                    let pixel = |i: usize| line.get(own(across.pixels[i])).map_or(0.0, |&x| f64::from(x));
                    across.weights[0] * pixel(0) + across.weights[1] * pixel(1)
                });
                *target = self.rule.target(down.weights[0] * first + down.weights[1] * second) as f32;
            }
        }
    }
}

/// The masks `[P, size, size]` of regions from `crops` `[B, G, M, M]` of the masks of ground truths with boxes `truths` `[B, G, 4]`.
///
/// # Errors
/// The first image that is not in `0..B`, or ground truth that is beyond the last one.
///
/// # Panics
/// If a tensor has another size than `desc` states.
pub fn mask_targets(
    ctx: Ctx<'_>,
    desc: &MaskDesc,
    crops: &[u8],
    truths: &[f32],
    regions: MaskRegions<'_>,
    masks: &mut [f32],
) -> Result<(), IndexOutOfRange> {
    assert!(
        crops.len() == desc.crops_len()
            && truths.len() == desc.batch * desc.truths * COORDINATES
            && regions.boxes.len() == desc.regions * COORDINATES
            && [regions.images.len(), regions.truths.len()] == [desc.regions; 2]
            && masks.len() == desc.masks_len(),
        "masks of regions got tensors of other sizes"
    );
    check(regions.images, desc.batch)?;
    check_optional(regions.truths, desc.truths)?;
    for_chunks(ctx, masks, desc.mask_len(), &|p, mask| match usize::try_from(regions.truths[p]) {
        Err(_) => mask.fill(0.0),
        Ok(number) => {
            let truth = regions.images[p] as usize * desc.truths + number;
            let crop = &crops[truth * desc.crop_len()..][..desc.crop_len()];
            let [region, truth] = [box_at(regions.boxes, p), box_at(truths, truth)].map(|b| b.map(f64::from));
            desc.mask(region, truth, crop, mask);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::threads::ThreadPool;

    #[test]
    fn images_and_ground_truths_out_of_range() {
        let rule = MaskTargets { size: 2, border: 1, threshold: None };
        let desc = MaskDesc { rule, batch: 2, truths: 3, crop: 4, regions: 2 };
        let pool = ThreadPool::new(1);
        let run = |images: [i32; 2], truths: [i32; 2]| {
            let regions = MaskRegions { boxes: &[1.0; 8], images: &images, truths: &truths };
            let ctx = Ctx::alone(Isa::detect(), &pool);
            mask_targets(ctx, &desc, &[0; 96], &[1.0; 24], regions, &mut [0.0; 8])
        };
        assert_eq!(run([1, 0], [-1, 2]), Ok(()));
        assert_eq!(run([0, 2], [0, 0]), Err(IndexOutOfRange { position: 1, index: 2, limit: 2 }));
        assert_eq!(run([0, -1], [0, 0]), Err(IndexOutOfRange { position: 1, index: -1, limit: 2 }));
        assert_eq!(run([0, 0], [3, 0]), Err(IndexOutOfRange { position: 0, index: 3, limit: 3 }));
    }
}
