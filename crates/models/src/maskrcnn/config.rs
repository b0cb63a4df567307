//! Sizes and variants of Mask R-CNNs.

use crate::ModelError;
use crate::resnet::Backbone;
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::detection::anchors::{AnchorLevel, AnchorPlacement, Anchors};
use bessemer_ir::ops::detection::boxes::{AxisOrder, BoxClip, BoxCode, DecodeBoxes};
use bessemer_ir::ops::detection::masks::MaskTargets;
use bessemer_ir::ops::detection::matching::{ForcedMatch, MatchBoxes};
use bessemer_ir::ops::detection::roi::{RoiAlign, RoiBorder, RoiLevels, RoiSamples};
use bessemer_ir::ops::detection::sample::SampleFill;
use bessemer_nn::{BatchNormOptions, Fan, Padding, PixelScale};
use serde::{Deserialize, Serialize};

/// The finest map of the pyramid: its stride is `2^FIRST_LEVEL` pixels.
pub(super) const FIRST_LEVEL: usize = 2;
/// Maps of the pyramid: P2 to P6.
pub(super) const LEVELS: usize = 5;
/// Sides of a canvas are multiples of the coarsest stride of the backbone.
pub const CANVAS_MULTIPLE: usize = 32;
/// Rows and columns of the features of a box, and of those of a mask.
pub(super) const BOX_SIZE: usize = 7;
pub(super) const MASK_FEATURE_SIZE: usize = 14;
/// Rows and columns of a mask.
pub const MASK_SIZE: usize = 2 * MASK_FEATURE_SIZE;
/// Zeros around a crop, beyond which a mask is empty.
const CROP_BORDER: usize = 2;
/// Added to sides before they are divided.
const SIDE_EPS: f64 = 1e-8;

/// Whose conventions a network follows where implementations differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flavour {
    /// torchvision's `maskrcnn_resnet50_fpn`: codes x first, regions of two samples a bin from levels 2 to 5.
    #[default]
    Torchvision,
    /// NVIDIA's TensorFlow 2 recipe: codes y first with sides counted in pixels, regions of one sample a bin from levels 2 to 6.
    Nvidia,
}

impl Flavour {
    fn order(self) -> AxisOrder {
        match self {
            Flavour::Torchvision => AxisOrder::Xy,
            Flavour::Nvidia => AxisOrder::Yx,
        }
    }

    /// The code of the targets of reference boxes.
    pub(super) fn anchor_code(self) -> BoxCode {
        let eps = match self {
            Flavour::Torchvision => 0.0,
            Flavour::Nvidia => SIDE_EPS,
        };
        BoxCode { eps: Scalar(eps), ..BoxCode::plain(self.order()) }
    }

    /// From deltas of reference boxes to proposals: NVIDIA counts sides in pixels here, though not in the targets.
    pub(super) fn decode_anchors(self) -> DecodeBoxes {
        self.decode(BoxCode { legacy: self == Flavour::Nvidia, ..BoxCode::plain(self.order()) })
    }

    /// The code of the box of a region.
    pub(super) fn region_code(self) -> BoxCode {
        let weights = [10.0, 10.0, 5.0, 5.0].map(Scalar);
        BoxCode { weights, legacy: self == Flavour::Nvidia, ..BoxCode::plain(self.order()) }
    }

    /// From deltas of regions to boxes.
    pub(super) fn decode_regions(self) -> DecodeBoxes {
        self.decode(self.region_code())
    }

    fn decode(self, code: BoxCode) -> DecodeBoxes {
        let clip = match self {
            Flavour::Torchvision => BoxClip::Size,
            Flavour::Nvidia => BoxClip::SizeMinusOne,
        };
        DecodeBoxes { code, max_growth: Some(Scalar((1000.0f64 / 16.0).ln())), clip }
    }

    /// Which object a reference box is to predict.
    pub(super) fn match_anchors(self, [low, high]: [f64; 2]) -> MatchBoxes {
        let forced = match self {
            Flavour::Torchvision => ForcedMatch::AllTies,
            Flavour::Nvidia => ForcedMatch::BestOnce,
        };
        MatchBoxes { low: Scalar(low), high: Scalar(high), high_inclusive: true, forced, union_eps: Scalar(0.0) }
    }

    /// Which object a region is to predict.
    pub(super) fn match_regions(self, overlap: f64) -> MatchBoxes {
        let (high_inclusive, union_eps) = match self {
            Flavour::Torchvision => (true, 0.0),
            Flavour::Nvidia => (false, SIDE_EPS),
        };
        let threshold = Scalar(overlap);
        MatchBoxes {
            low: threshold,
            high: threshold,
            high_inclusive,
            forced: ForcedMatch::No,
            union_eps: Scalar(union_eps),
        }
    }

    /// What stands in for regions where there are too few.
    pub(super) fn fill(self) -> SampleFill {
        match self {
            Flavour::Torchvision => SampleFill::Padding,
            Flavour::Nvidia => SampleFill::Rest,
        }
    }

    /// Features of `size x size` bins of regions.
    pub(super) fn roi_align(self, size: usize) -> RoiAlign {
        let (samples, border, eps, maps) = match self {
            Flavour::Torchvision => (2, RoiBorder::Torch, 1e-6, LEVELS - 1),
            Flavour::Nvidia => (1, RoiBorder::Clamp, 0.0, LEVELS),
        };
        RoiAlign {
            size: [size; 2],
            samples: RoiSamples::Fixed(samples),
            border,
            levels: RoiLevels::standard(eps),
            strides: (0..maps).map(|map| Scalar((1usize << (FIRST_LEVEL + map)) as f64)).collect(),
        }
    }

    /// Masks that regions are to predict.
    pub(super) fn mask_targets(self) -> MaskTargets {
        let threshold = match self {
            Flavour::Torchvision => None,
            Flavour::Nvidia => Some(Scalar(0.5)),
        };
        MaskTargets { size: MASK_SIZE, border: CROP_BORDER, threshold }
    }

    /// Sides of proposals and of detections are at least so long, in pixels.
    pub(super) fn least_sides(self) -> [Option<Scalar>; 2] {
        match self {
            Flavour::Torchvision => [1e-3, 1e-2].map(|side| Some(Scalar(side))),
            Flavour::Nvidia => [None; 2],
        }
    }
}

/// Reference boxes at each position of a map.
#[derive(Clone, Debug, PartialEq)]
pub struct AnchorOptions {
    /// Side of a box, in strides of its map.
    pub scale: f64,
    /// Factors of width and height, `[x, y]`, of each box of a position.
    pub aspects: Vec<[f64; 2]>,
}

impl AnchorOptions {
    /// Sides of 32 to 512 pixels in three shapes.
    pub fn new(flavour: Flavour) -> Self {
        let aspects = match flavour {
            Flavour::Torchvision => [0.5f64, 1.0, 2.0].map(|ratio| [ratio.sqrt().recip(), ratio.sqrt()]).to_vec(),
            Flavour::Nvidia => vec![[1.0, 1.0], [1.4, 0.7], [0.7, 1.4]],
        };
        AnchorOptions { scale: 8.0, aspects }
    }
}

/// An error unless each of the settings is at least 1.
fn at_least_1(settings: &[(&'static str, usize)]) -> Result<(), ModelError> {
    match settings.iter().find(|(_, value)| *value == 0) {
        Some(&(setting, _)) => {
            Err(ModelError::Setting { setting, value: "0".to_string(), allowed: "it must be at least 1".into() })
        }
        None => Ok(()),
    }
}

/// How many proposals there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProposalOptions {
    /// Reference boxes of the best scores that are looked at, for each level; `None` for all.
    pub candidates: Option<usize>,
    /// Proposals of an image, at most.
    pub most: usize,
}

impl ProposalOptions {
    fn check(&self) -> Result<(), ModelError> {
        at_least_1(&[("candidates", self.candidates.unwrap_or(1)), ("proposals", self.most)])
    }
}

/// From images with objects to losses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingOptions {
    /// Proposals before objects are appended to them.
    pub proposals: ProposalOptions,
    /// IoU below which a reference box is background, and from which it is an object.
    pub anchor_overlaps: [f64; 2],
    /// Reference boxes of an image that enter the losses, and objects among them at most.
    pub anchor_samples: [usize; 2],
    /// IoU that separates regions of objects from background.
    pub region_overlap: f64,
    /// Regions of an image that enter the losses, and objects among them at most.
    pub region_samples: [usize; 2],
    /// Whether samples are random; the first ones otherwise.
    pub random_samples: bool,
    /// Weight of half the squares of all kernels.
    pub l2: f64,
}

impl TrainingOptions {
    /// Those of a published recipe. The decay of torchvision is that of its optimizer.
    pub fn new(flavour: Flavour) -> Self {
        let (proposals, l2) = match flavour {
            Flavour::Torchvision => (ProposalOptions { candidates: Some(2000), most: 2000 }, 0.0),
            Flavour::Nvidia => (ProposalOptions { candidates: None, most: 1000 }, 1e-4),
        };
        TrainingOptions {
            proposals,
            anchor_overlaps: [0.3, 0.7],
            anchor_samples: [256, 128],
            region_overlap: 0.5,
            region_samples: [512, 128],
            random_samples: true,
            l2,
        }
    }

    pub(super) fn check(&self) -> Result<(), ModelError> {
        self.proposals.check()?;
        for (setting, [total, positives]) in
            [("anchor_samples", self.anchor_samples), ("region_samples", self.region_samples)]
        {
            if positives == 0 || positives > total {
                let value = format!("{total} with {positives} objects");
                let allowed = "there must be at least one object, and no more objects than samples";
                return Err(ModelError::Setting { setting, value, allowed: allowed.into() });
            }
        }
        Ok(())
    }
}

/// From the outputs of the network to detections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DetectionOptions {
    /// Proposals.
    pub proposals: ProposalOptions,
    /// The largest IoU of two detections of a class.
    pub overlap: f64,
    /// Scores of detections are above it.
    pub score_floor: f64,
    /// Detections of an image, at most.
    pub detections: usize,
}

impl DetectionOptions {
    /// Those of a published evaluation.
    pub fn new(flavour: Flavour) -> Self {
        let (candidates, score_floor) = match flavour {
            Flavour::Torchvision => (Some(1000), 0.05),
            Flavour::Nvidia => (None, 0.0),
        };
        let proposals = ProposalOptions { candidates, most: 1000 };
        DetectionOptions { proposals, overlap: 0.5, score_floor, detections: 100 }
    }

    pub(super) fn check(&self) -> Result<(), ModelError> {
        self.proposals.check()?;
        at_least_1(&[("detections", self.detections)])
    }
}

/// Variants of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskRcnnOptions {
    /// Whose conventions.
    pub flavour: Flavour,
    /// Height and width of the canvas in pixels, multiples of [`CANVAS_MULTIPLE`].
    pub canvas: [usize; 2],
    /// Blocks of each stage of the backbone.
    pub depths: [usize; 4],
    /// The backbone, a ResNet of bottlenecks.
    pub backbone: Backbone,
    /// Channels of the pyramid.
    pub width: usize,
    /// Features of a region in the head for classes and boxes.
    pub box_width: usize,
    /// Channels of each convolution of the head for masks.
    pub mask_widths: Vec<usize>,
    /// Classes; number 0 is the background.
    pub num_classes: usize,
    /// Objects of an image, at most.
    pub max_objects: usize,
    /// Rows and columns of the crop of an object's mask.
    pub crop: usize,
    /// How pixels are normalised.
    pub scale: PixelScale,
    /// Reference boxes.
    pub anchors: AnchorOptions,
    /// The largest IoU of two proposals of a level.
    pub proposal_overlap: f64,
    /// Seed of random samples.
    pub seed: u64,
}

impl MaskRcnnOptions {
    /// The published network upon a ResNet-50, for COCO: all norms, the stem and C2 are frozen.
    pub fn new(flavour: Flavour) -> Self {
        let (padding, height) = match flavour {
            Flavour::Torchvision => (Padding::Symmetric, 800),
            Flavour::Nvidia => (Padding::Same, 832),
        };
        MaskRcnnOptions {
            flavour,
            canvas: [height, 1344],
            depths: [3, 4, 6, 3],
            backbone: Backbone {
                padding,
                fan: Fan::Out,
                norm: BatchNormOptions { frozen: true, ..BatchNormOptions::default() },
                freeze_at: 2,
                ..Backbone::new(64)
            },
            width: 256,
            box_width: 1024,
            mask_widths: vec![256; 4],
            num_classes: 91,
            max_objects: 100,
            crop: 112,
            scale: PixelScale::IMAGENET,
            anchors: AnchorOptions::new(flavour),
            proposal_overlap: 0.7,
            seed: 0,
        }
    }

    /// Rows and columns of each level.
    pub(super) fn grids(&self) -> [[usize; 2]; LEVELS] {
        std::array::from_fn(|level| self.canvas.map(|side| side.div_ceil(1 << (FIRST_LEVEL + level))))
    }

    /// Reference boxes of each level: by row, column and aspect.
    pub(super) fn anchors(&self) -> [Anchors; LEVELS] {
        let grids = self.grids();
        std::array::from_fn(|level| {
            let side = self.anchors.scale * (1usize << (FIRST_LEVEL + level)) as f64;
            let half = |factor: &f64| match self.flavour {
                Flavour::Torchvision => (side * factor / 2.0).round_ties_even(),
                Flavour::Nvidia => side * factor / 2.0,
            };
            let grid = grids[level];
            // Where the coarsest map is rounded up, torchvision's boxes are nearer to each other than its pixels.
            let stride = std::array::from_fn(|axis| Scalar((self.canvas[axis] / grid[axis]) as f64));
            let shapes = self.anchors.aspects.iter().map(|[x, y]| [half(x), half(y)]);
            let boxes = shapes.map(|[x, y]| [-x, -y, x, y].map(Scalar)).collect();
            let placement = match self.flavour {
                Flavour::Torchvision => AnchorPlacement::Corner,
                Flavour::Nvidia => AnchorPlacement::Centre,
            };
            Anchors { levels: vec![AnchorLevel { grid, stride, boxes }], placement }
        })
    }

    pub(super) fn check(&self, batch: usize) -> Result<(), ModelError> {
        let error = |setting, value: usize, allowed: &'static str| {
            Err(ModelError::Setting { setting, value: value.to_string(), allowed: allowed.into() })
        };
        at_least_1(&[
            ("batch_size", batch),
            ("base_width", self.backbone.base_width),
            ("the number of blocks of a stage", self.depths.into_iter().min().unwrap_or(0)),
            ("width", self.width),
            ("box_width", self.box_width),
            ("mask_widths", self.mask_widths.iter().copied().min().unwrap_or(0)),
            ("max_objects", self.max_objects),
            ("crop", self.crop),
            ("the number of anchors of a position", self.anchors.aspects.len()),
        ])?;
        if self.num_classes < 2 {
            return error(
                "num_classes",
                self.num_classes,
                "it must be at least 2, the first of which is the background",
            );
        }
        for (setting, side) in [("canvas height", self.canvas[0]), ("canvas width", self.canvas[1])] {
            if side == 0 || !side.is_multiple_of(CANVAS_MULTIPLE) {
                return error(setting, side, "it must be a multiple of 32, the coarsest stride of the backbone");
            }
        }
        if self.backbone.freeze_at > 5 {
            return error("freeze_at", self.backbone.freeze_at, "it must be at most 5, the stem and four stages");
        }
        Ok(())
    }
}
