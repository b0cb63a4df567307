//! Features of regions of interest (He et al. 2017, arXiv:1703.06870, section 3), each from the map of a pyramid that suits its size
//! (Lin et al. 2017, arXiv:1612.03144, equation 1).
//!
//! - The level of a region is `floor(canonical_level + log2(sqrt(area) / canonical_size) + eps)`, or the nearest one that there is;
//!   a region without area has the first.
//! - Its coordinates are divided by the stride of the map, whose pixel `i` lies at `i`: there is no shift by half a pixel. Each
//!   axis is cut into bins of equal size. Sample `k` of `n` lies at `(k + 0.5) / n` of its bin, along each axis.
//! - A sample is interpolated from the four pixels around it. The mean of a bin's samples is its feature.

use super::super::conv::sizes4;
use super::super::{Cost, GradArgs, Gradient, LowResult, MixedPrecision, OpError, OpRule, Scalar};
use super::{COORDINATES, box_at, check_operand};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError};
use crate::reference::Tensor;
use crate::rules::Rules;
use crate::shape::{Shape, TensorType};

/// Maps of a pyramid at most.
pub const MOST_LEVELS: usize = 8;

/// Samples of a bin along each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoiSamples {
    /// As many.
    Fixed(usize),
    /// As many as the bin has pixels, rounded up; at most as many as the map has.
    Adaptive,
}

/// What happens at the border of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoiBorder {
    /// As torchvision: a region has a side of at least 1 pixel of its map; a sample more than 1 pixel outside is 0, others outside
    /// have the value at the border.
    Torch,
    /// As the TensorFlow recipe: pixels outside are those at the border, and weights are those of the sample's own position, as if
    /// the map began with its first pixel. Regions have any side.
    Clamp,
}

/// Which map a region is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoiLevels {
    /// Side of a region of the canonical level, in pixels of the canvas.
    pub canonical_size: Scalar,
    /// Level of regions of that size.
    pub canonical_level: usize,
    /// Added to the level before it is rounded down.
    pub eps: Scalar,
    /// Level of the first map.
    pub first: usize,
}

impl RoiLevels {
    /// Sizes from 224 pixels on have level 4, and the first map has level 2.
    pub fn standard(eps: f64) -> RoiLevels {
        RoiLevels { canonical_size: Scalar(224.0), canonical_level: 4, eps: Scalar(eps), first: 2 }
    }
}

/// Features of regions. Inputs: the maps of `L` levels `[B, Hl, Wl, C]`, finest first, boxes `f32[R, 4]` in pixels of the canvas, the
/// image of each one `i32[R]`; output `[R, size, C]`, with both axes of `size`. An image outside `0..B` is an error when it runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoiAlign {
    /// Bins along height and width.
    pub size: [usize; 2],
    /// Samples of a bin.
    pub samples: RoiSamples,
    /// What happens at the border of a map.
    pub border: RoiBorder,
    /// Which map a region is read from.
    pub levels: RoiLevels,
    /// Distance of the pixels of each map, in pixels of the canvas; at most [`MOST_LEVELS`].
    pub strides: Vec<Scalar>,
}

/// The samples of a region along an axis of its map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoiAxis {
    start: f64,
    bin: f64,
    /// Samples of a bin.
    pub samples: usize,
    pixels: usize,
    border: RoiBorder,
}

/// Two pixels, and their weights in the mean of a bin; zeros for a sample outside the map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoiTap {
    /// Positions along the axis.
    pub pixels: [usize; 2],
    /// Of the pixels.
    pub weights: [f64; 2],
}

impl RoiAxis {
    /// Bins of a size in pixels, one behind the other from `start` on, on an axis of `pixels`.
    pub(super) fn new(start: f64, bin: f64, samples: usize, pixels: usize, border: RoiBorder) -> RoiAxis {
        RoiAxis { start, bin, samples, pixels, border }
    }

    /// What a sample of a bin reads.
    pub fn tap(&self, bin: usize, sample: usize) -> RoiTap {
        let samples = self.samples as f64;
        let at = self.start + bin as f64 * self.bin + (sample as f64 + 0.5) * self.bin / samples;
        let last = self.pixels - 1;
        let at = match self.border {
            RoiBorder::Torch if at < -1.0 || at > self.pixels as f64 => {
                return RoiTap { pixels: [0; 2], weights: [0.0; 2] };
            }
            RoiBorder::Torch => at.clamp(0.0, last as f64),
            RoiBorder::Clamp => at,
        };
        let low = at.floor().max(0.0);
        let high_weight = at - low;
        let low = low as usize;
        let weights = [(1.0 - high_weight) / samples, high_weight / samples];
        RoiTap { pixels: [low.min(last), low.saturating_add(1).min(last)], weights }
    }
}

impl RoiAlign {
    /// Number of the map that a box is read from.
    pub fn map_of(&self, b: [f64; COORDINATES]) -> usize {
        let levels = &self.levels;
        let area = (b[2] - b[0]) * (b[3] - b[1]);
        let level =
            (levels.canonical_level as f64 + (area.sqrt() / levels.canonical_size.0).log2() + levels.eps.0).floor();
        // Not a number: a box without area.
        (level - levels.first as f64).clamp(0.0, (self.strides.len() - 1) as f64) as usize
    }

    /// The samples of a box on map number `map`, which has `pixels` along the axis (0 for the height).
    pub fn axis(&self, b: [f64; COORDINATES], map: usize, axis: usize, pixels: usize) -> RoiAxis {
        let stride = self.strides[map].0;
        let [low, high] = [b[1 - axis] / stride, b[3 - axis] / stride];
        let side = match self.border {
            RoiBorder::Torch => (high - low).max(1.0),
            RoiBorder::Clamp => high - low,
        };
        let bin = side / self.size[axis] as f64;
        let samples = match self.samples {
            RoiSamples::Fixed(samples) => samples,
            RoiSamples::Adaptive => (bin.ceil() as usize).clamp(1, pixels),
        };
        RoiAxis::new(low, bin, samples, pixels, self.border)
    }

    /// Distinct pixels at most that the bins of an axis of `pixels` read, those of two bins counted twice.
    pub fn most_taps(&self, axis: usize, pixels: usize) -> usize {
        match self.samples {
            RoiSamples::Fixed(samples) => 2 * samples * self.size[axis],
            RoiSamples::Adaptive => pixels + 2 * self.size[axis],
        }
    }

    /// Calls `f(map, pixel, bin, weight)` for each pixel, of all of its map `[B, Hl, Wl]`, that a bin, of all `[R, size]`, reads.
    fn for_each_tap(
        &self,
        maps: &[[usize; 2]],
        boxes: &Tensor,
        images: &Tensor,
        batch: usize,
        mut f: impl FnMut(usize, usize, usize, f64),
    ) {
        for (roi, &image) in images.data.iter().enumerate() {
            assert!((0.0..batch as f64).contains(&image), "the image {image} is outside 0..{batch}");
            let own = box_at(boxes, 0, roi);
            let map = self.map_of(own);
            let [height, width] = maps[map];
            let (y, x) = (self.axis(own, map, 0, height), self.axis(own, map, 1, width));
            for bin in 0..self.size[0] * self.size[1] {
                for sample in 0..y.samples * x.samples {
                    let down = y.tap(bin / self.size[1], sample / x.samples);
                    let across = x.tap(bin % self.size[1], sample % x.samples);
                    for corner in 0..4 {
                        let (i, j) = (corner / 2, corner % 2);
                        let pixel = (image as usize * height + down.pixels[i]) * width + across.pixels[j];
                        let weight = down.weights[i] * across.weights[j];
                        f(map, pixel, roi * self.size[0] * self.size[1] + bin, weight);
                    }
                }
            }
        }
    }

    fn check(&self) -> Result<(), OpError> {
        let attribute = |problem: &str| Err(OpError::Attribute(problem.to_string()));
        let levels = &self.levels;
        match self.samples {
            _ if self.size.contains(&0) => attribute("there must be at least one bin"),
            RoiSamples::Fixed(0) => attribute("a bin must have at least one sample"),
            _ if self.strides.is_empty() || self.strides.len() > MOST_LEVELS => {
                Err(OpError::Attribute(format!("there must be 1 to {MOST_LEVELS} maps, not {}", self.strides.len())))
            }
            _ if !self.strides.iter().all(|s| s.0.is_finite() && s.0 > 0.0) => attribute("strides must be positive"),
            _ if !(levels.canonical_size.0.is_finite()
                && levels.canonical_size.0 > 0.0
                && levels.eps.0.is_finite()) =>
            {
                attribute("the canonical size must be positive, and the epsilon finite")
            }
            _ => Ok(()),
        }
    }

    fn check_boxes(&self, boxes: &TensorType, images: &TensorType) -> Result<usize, OpError> {
        check_operand("boxes", boxes, DType::F32, "[R, 4]", &[None, Some(COORDINATES)])?;
        check_operand("image of each box", images, DType::I32, "[R]", &[Some(boxes.shape[0])])?;
        Ok(boxes.shape[0])
    }

    /// Multiplications and additions of all bins, of two samples along each axis where their number depends on the boxes.
    fn flops(&self, features: &Shape) -> u64 {
        let samples = match self.samples {
            RoiSamples::Fixed(samples) => samples,
            RoiSamples::Adaptive => 2,
        };
        (8 * samples * samples * features.elements()) as u64
    }
}

/// Height and width of maps.
fn sides(maps: &[&TensorType]) -> Vec<[usize; 2]> {
    maps.iter().map(|map| [map.shape[1], map.shape[2]]).collect()
}

impl OpRule for RoiAlign {
    fn name(&self) -> &'static str {
        "roi_align"
    }

    fn attributes(&self) -> String {
        let samples = match self.samples {
            RoiSamples::Fixed(samples) => samples.to_string(),
            RoiSamples::Adaptive => "adaptive".to_string(),
        };
        let border = match self.border {
            RoiBorder::Torch => "torch",
            RoiBorder::Clamp => "clamp",
        };
        let strides: Vec<f64> = self.strides.iter().map(|s| s.0).collect();
        let RoiLevels { canonical_size, canonical_level, eps, first } = self.levels;
        format!(
            "size={:?}, samples={samples}, border={border}, strides={strides:?} from level {first}, level {canonical_level} at {}, eps={:e}",
            self.size, canonical_size.0, eps.0
        )
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        self.check()?;
        let levels = self.strides.len();
        if inputs.len() != levels + 2 {
            return Err(OpError::operands(format!("{levels} maps, boxes and the image of each box")));
        }
        let (maps, first) = (&inputs[..levels], inputs[0]);
        let [batch, _, _, channels] = sizes4(&first.shape, "first map", "[B, H, W, C]")?;
        for map in maps {
            let fits = matches!(*map.shape, [b, h, w, c] if b == batch && c == channels && h * w * c > 0);
            if !map.dtype.is_float() || map.dtype != first.dtype || !fits {
                return Err(OpError::operands(format!("maps [{batch}, H, W, {channels}] of one float element type")));
            }
        }
        let rois = self.check_boxes(inputs[levels], inputs[levels + 1])?;
        Ok(vec![TensorType::new(first.dtype, [rois, self.size[0], self.size[1], channels])])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let mut grads = vec![None; args.inputs.len()];
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(grads)) };
        let (maps, rois) = args.inputs.split_at(self.strides.len());
        if args.wanted[..maps.len()].contains(&true) {
            let types: Vec<&TensorType> = maps.iter().map(|&map| g.ty(map)).collect();
            let op = RoiAlignGrad { roi_align: self.clone(), batch: types[0].shape[0], maps: sides(&types) };
            for (number, grad) in g.push(op, &[dy, rois[0], rois[1]])?.into_iter().enumerate() {
                grads[number] = args.wanted[number].then_some(grad);
            }
        }
        Ok(Gradient::Inputs(grads))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(self.flops(&outputs[0].shape), inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (maps, rois) = inputs.split_at(self.strides.len());
        let types: Vec<&TensorType> = maps.iter().map(|map| &map.ty).collect();
        let [batch, channels] = [types[0].shape[0], types[0].shape[3]];
        let mut features = Tensor::zeros(outputs[0].clone());
        self.for_each_tap(&sides(&types), rois[0], rois[1], batch, |map, pixel, bin, weight| {
            for c in 0..channels {
                features.data[bin * channels + c] += weight * maps[map].data[pixel * channels + c];
            }
        });
        vec![features]
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        MixedPrecision::reading(self.strides.len(), LowResult::OfOperands)
    }
}

/// Gradient of [`RoiAlign`] with respect to its maps. Inputs: gradient of the features `[R, size, C]`, boxes `f32[R, 4]`, the image of
/// each one `i32[R]`; outputs: `L` gradients `[B, Hl, Wl, C]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoiAlignGrad {
    /// The forward operation.
    pub roi_align: RoiAlign,
    /// `B`
    pub batch: usize,
    /// Height and width of each map.
    pub maps: Vec<[usize; 2]>,
}

impl OpRule for RoiAlignGrad {
    fn name(&self) -> &'static str {
        "roi_align_grad"
    }

    fn attributes(&self) -> String {
        format!("{}, batch={}, maps={:?}", self.roi_align.attributes(), self.batch, self.maps)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [dy, boxes, images] = inputs else {
            return Err(OpError::operands("gradient of the features, boxes and the image of each box"));
        };
        self.roi_align.check()?;
        if self.maps.len() != self.roi_align.strides.len() || self.maps.iter().flatten().any(|&side| side == 0) {
            return Err(OpError::Attribute("there must be a map for each stride, of some pixels".to_string()));
        }
        let rois = self.roi_align.check_boxes(boxes, images)?;
        let [height, width] = self.roi_align.size;
        let sizes = [Some(rois), Some(height), Some(width), None];
        check_operand("gradient of the features", dy, dy.dtype, "one for each box and bin", &sizes)?;
        if !dy.dtype.is_float() {
            return Err(OpError::operands("a float gradient of the features"));
        }
        let map = |&[height, width]: &[usize; 2]| TensorType::new(dy.dtype, [self.batch, height, width, dy.shape[3]]);
        Ok(self.maps.iter().map(map).collect())
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::NotDifferentiable)
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(self.roi_align.flops(&inputs[0].shape), inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (dy, channels) = (inputs[0], outputs[0].shape[3]);
        let mut grads: Vec<Tensor> = outputs.iter().map(|ty| Tensor::zeros(ty.clone())).collect();
        self.roi_align.for_each_tap(&self.maps, inputs[1], inputs[2], self.batch, |map, pixel, bin, weight| {
            for c in 0..channels {
                grads[map].data[pixel * channels + c] += weight * dy.data[bin * channels + c];
            }
        });
        grads
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        MixedPrecision::reading(1, LowResult::OfOperands)
    }
}
