//! The Mask R-CNNs that commands know.

use super::config::{AnchorOptions, Flavour, MaskRcnnOptions};
use crate::ModelError;
use crate::model::find_in;
use crate::resnet::Backbone;
use bessemer_nn::BatchNormOptions;

/// A Mask R-CNN of the zoo.
#[derive(Clone, Copy, Debug)]
pub struct MaskRcnnSpec {
    /// Name in commands and recipes.
    pub name: &'static str,
    /// One line for lists of models.
    pub description: &'static str,
    /// The recipe that trains it.
    pub recipe: &'static str,
    sizes: fn(MaskRcnnOptions) -> MaskRcnnOptions,
}

/// All Mask R-CNNs.
pub const ZOO: [MaskRcnnSpec; 2] = [
    MaskRcnnSpec {
        name: "mask-rcnn",
        description: "Mask R-CNN with a ResNet-50 and a feature pyramid, for COCO (He et al. 2017)",
        recipe: "mask-rcnn",
        sizes: |published| published,
    },
    MaskRcnnSpec {
        name: "mask-rcnn-tiny",
        description: "Mask R-CNN with a ResNet of 14 layers and narrow heads, for 128 pixels",
        recipe: "mask-rcnn-quick",
        sizes: |published| MaskRcnnOptions {
            canvas: [128; 2],
            depths: [1; 4],
            backbone: Backbone {
                norm: BatchNormOptions::default(),
                freeze_at: 0,
                base_width: 16,
                ..published.backbone
            },
            width: 64,
            box_width: 128,
            mask_widths: vec![32; 2],
            num_classes: 11,
            anchors: AnchorOptions { scale: 4.0, ..published.anchors },
            ..published
        },
    },
];

impl MaskRcnnSpec {
    /// The usual variant.
    pub fn options(&self, flavour: Flavour) -> MaskRcnnOptions {
        (self.sizes)(MaskRcnnOptions::new(flavour))
    }
}

/// The Mask R-CNN named `name`.
///
/// # Errors
/// [`ModelError::Unknown`], which lists all.
pub fn find(name: &str) -> Result<&'static MaskRcnnSpec, ModelError> {
    find_in(&ZOO, name, |spec| spec.name)
}
