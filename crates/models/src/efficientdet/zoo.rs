//! The detectors that commands know.

use super::config::{DetectorOptions, Size};
use crate::ModelError;
use crate::efficientnet::Scaling;
use crate::model::find_in;

/// A detector of the zoo.
#[derive(Clone, Copy, Debug)]
pub struct DetectorSpec {
    /// Name in commands and recipes.
    pub name: &'static str,
    /// One line for lists of models.
    pub description: &'static str,
    /// Its sizes.
    pub size: Size,
    /// Classes by default.
    pub num_classes: usize,
    /// The recipe that trains it.
    pub recipe: &'static str,
}

/// All detectors.
pub const ZOO: [DetectorSpec; 2] = [
    DetectorSpec {
        name: "efficientdet-d0",
        description: "EfficientDet-D0 for COCO (Tan et al. 2020)",
        size: Size::D[0],
        num_classes: 91,
        recipe: "efficientdet-d0",
    },
    DetectorSpec {
        name: "efficientdet-tiny",
        description: "EfficientDet with half the widths of D0 and fewer layers, for 128 pixels",
        size: Size { canvas: 128, backbone: Scaling { width: 0.5, depth: 0.3 }, width: 32, cells: 2, head_depth: 2 },
        num_classes: 10,
        recipe: "detection-quick",
    },
];

impl DetectorSpec {
    /// The usual variant.
    pub fn options(&self) -> DetectorOptions {
        DetectorOptions { num_classes: self.num_classes, ..DetectorOptions::new(self.size) }
    }
}

/// The detector named `name`.
///
/// # Errors
/// [`ModelError::Unknown`], which lists all.
pub fn find(name: &str) -> Result<&'static DetectorSpec, ModelError> {
    find_in(&ZOO, name, |spec| spec.name)
}
