//! Reference boxes at the positions of feature maps (Ren et al. 2015, arXiv:1506.01497, section 3.1.1).

use super::super::{Cost, GradArgs, Gradient, OpError, OpRule, Scalar};
use super::COORDINATES;
use crate::graph::{Graph, GraphError};
use crate::reference::Tensor;
use crate::shape::TensorType;

/// Where the origin of position `(row, col)` of a grid lies on the canvas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnchorPlacement {
    /// `stride / 2 + i * stride` along each axis.
    Centre,
    /// `i * stride` along each axis.
    Corner,
}

/// One feature map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AnchorLevel {
    /// Rows and columns.
    pub grid: [usize; 2],
    /// Distance of neighbouring rows and of neighbouring columns in pixels.
    pub stride: [Scalar; 2],
    /// Boxes at each position, in pixels from its origin.
    pub boxes: Vec<[Scalar; COORDINATES]>,
}

/// The boxes of all levels, `f32[A, 4]`: by level, row, column and box. No inputs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Anchors {
    /// The feature maps, finest first.
    pub levels: Vec<AnchorLevel>,
    /// Where positions lie on the canvas.
    pub placement: AnchorPlacement,
}

impl Anchors {
    /// Number of boxes of all levels.
    pub fn count(&self) -> usize {
        self.levels.iter().map(|level| level.grid[0] * level.grid[1] * level.boxes.len()).sum()
    }

    /// The boxes in their order.
    pub fn boxes(&self) -> impl Iterator<Item = [f64; COORDINATES]> {
        let origin = match self.placement {
            AnchorPlacement::Centre => 0.5,
            AnchorPlacement::Corner => 0.0,
        };
        self.levels.iter().flat_map(move |level| {
            let positions = (0..level.grid[0]).flat_map(|row| (0..level.grid[1]).map(move |col| (row, col)));
            positions.flat_map(move |(row, col)| {
                let at = |index: usize, stride: Scalar| origin * stride.0 + index as f64 * stride.0;
                let (y, x) = (at(row, level.stride[0]), at(col, level.stride[1]));
                level.boxes.iter().map(move |b| [x + b[0].0, y + b[1].0, x + b[2].0, y + b[3].0])
            })
        })
    }
}

impl OpRule for Anchors {
    fn name(&self) -> &'static str {
        "anchors"
    }

    fn attributes(&self) -> String {
        let level = |level: &AnchorLevel| {
            let AnchorLevel { grid: [rows, cols], stride: [down, across], boxes } = level;
            format!("{rows}x{cols}x{} every {}x{}", boxes.len(), down.0, across.0)
        };
        let levels: Vec<String> = self.levels.iter().map(level).collect();
        let placement = match self.placement {
            AnchorPlacement::Centre => "centre",
            AnchorPlacement::Corner => "corner",
        };
        format!("levels=[{}], placement={placement}", levels.join(", "))
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        if !inputs.is_empty() {
            return Err(OpError::operands("no tensors"));
        }
        for (number, level) in self.levels.iter().enumerate() {
            let problem = |what: &str| Err(OpError::Attribute(format!("level {number} {what}")));
            if level.grid.contains(&0) || level.boxes.is_empty() {
                return problem("has no boxes");
            }
            if !level.stride.iter().all(|s| s.0.is_finite() && s.0 > 0.0) {
                return problem("must have positive strides");
            }
            if !level.boxes.iter().flatten().all(|c| c.0.is_finite()) {
                return problem("has a coordinate that is NaN or infinite");
            }
        }
        match self.levels.is_empty() {
            true => Err(OpError::Attribute("there must be at least one level".to_string())),
            false => Ok(vec![TensorType::f32([self.count(), COORDINATES])]),
        }
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::Inputs(Vec::new()))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(outputs[0].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, _inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        vec![Tensor::new(outputs[0].clone(), self.boxes().flatten().collect())]
    }
}
