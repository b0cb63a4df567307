//! What happens to a batch before the first layer, inside the graph.

use crate::Result;
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::{DType, Graph, Shape, Value};

/// Mean and standard deviation of each colour channel, of pixels in `[0, 1]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PixelScale {
    /// Of red, green and blue.
    pub mean: [f64; 3],
    /// Of red, green and blue.
    pub std: [f64; 3],
}

impl PixelScale {
    /// Those of ImageNet's training images, as PyTorch's recipes use them.
    pub const IMAGENET: PixelScale = PixelScale { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] };
}

/// `u8[N, H, W, 3]` to `f32`: `(x / 255 - mean) / std`, as one multiply-add a channel.
pub fn normalise(g: &mut Graph, images: Value, scale: &PixelScale) -> Result<Value> {
    let factor: Vec<f64> = scale.std.iter().map(|std| 1.0 / (255.0 * std)).collect();
    let offset: Vec<f64> = scale.mean.iter().zip(scale.std).map(|(mean, std)| -mean / std).collect();
    let x = g.cast(images, DType::F32)?;
    let factor = g.constant_vector(&factor)?;
    let offset = g.constant_vector(&offset)?;
    let scaled = g.mul(x, factor)?;
    g.add(scaled, offset)
}

/// `x f32[N, H, W, C]` with zeros outside the upper left corner of `sizes f32[N, 2]`, height and width of each image in pixels.
pub fn on_canvas(g: &mut Graph, x: Value, sizes: Value) -> Result<Value> {
    let &[batch, height, width, _] = g.shape(x).dims() else { panic!("an image is [N, H, W, C], not {}", g.shape(x)) };
    let zero = g.constant_like(x, 0.0)?;
    let mut inside = x;
    for (axis, side) in [height, width].into_iter().enumerate() {
        let positions: Vec<f64> = (0..side).map(|position| position as f64).collect();
        let positions = g.constant_vector(&positions)?;
        let shape = if axis == 0 { [1, side, 1, 1] } else { [1, 1, side, 1] };
        let positions = g.reshape(positions, shape)?;
        let size = g.slice(sizes, &[0, axis], &[batch, axis + 1], &[1, 1])?;
        let size = g.reshape(size, [batch, 1, 1, 1])?;
        let is_inside = g.binary(BinaryKind::Lt, positions, size)?;
        inside = g.select(is_inside, inside, zero)?;
    }
    Ok(inside)
}

/// `weight * x + (1 - weight) * y` for each sample, where `x` and `y` are `f32[N, ...]` and `weight` is `f32[]` or `f32[N]`
/// (Zhang et al., "mixup: Beyond empirical risk minimization", 2018).
pub fn mix(g: &mut Graph, x: Value, y: Value, weight: Value) -> Result<Value> {
    let weight = per_sample(g, weight, g.shape(x).rank())?;
    let difference = g.sub(x, y)?;
    let part = g.mul(difference, weight)?;
    g.add(y, part)
}

/// A number, or one number for each sample, as a tensor that broadcasts along the first of `rank` axes.
fn per_sample(g: &mut Graph, weight: Value, rank: usize) -> Result<Value> {
    let shape = g.shape(weight).clone();
    if shape.rank() == 0 {
        return Ok(weight);
    }
    let mut column = vec![1; rank];
    column[0] = shape.elements();
    g.reshape(weight, Shape::new(column))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{Builder, Mode};
    use bessemer_ir::reference::Interpreter;

    #[test]
    fn pixels_are_centred_and_scaled() {
        let mut b = Builder::new(Mode::Infer);
        let x = b.feed("x", DType::U8, [1, 1, 2, 3]).expect("a new name");
        let y = normalise(&mut b.graph, x, &PixelScale::IMAGENET).expect("a legal graph");
        b.graph.output("y", y);
        let mut run = Interpreter::new(&b.graph);
        let pixels = [0.0, 128.0, 255.0, 7.0, 8.0, 9.0];
        run.set("x", &pixels);
        run.run();
        for (i, (&y, pixel)) in run.output("y").data.iter().zip(pixels).enumerate() {
            let PixelScale { mean, std } = PixelScale::IMAGENET;
            assert!((y - (pixel / 255.0 - mean[i % 3]) / std[i % 3]).abs() < 1e-12);
        }
    }

    #[test]
    fn what_is_outside_the_image_is_zero() {
        let mut b = Builder::new(Mode::Infer);
        let x = b.feed("x", DType::F32, [2, 2, 3, 1]).expect("a new name");
        let sizes = b.feed("sizes", DType::F32, [2, 2]).expect("a new name");
        let y = on_canvas(&mut b.graph, x, sizes).expect("a legal graph");
        b.graph.output("y", y);
        let mut run = Interpreter::new(&b.graph);
        let pixels: Vec<f64> = (1..13).map(f64::from).collect();
        run.set("x", &pixels);
        run.set("sizes", &[2.0, 2.0, 1.0, 3.0]);
        run.run();
        assert_eq!(run.output("y").data, [1.0, 2.0, 0.0, 4.0, 5.0, 0.0, 7.0, 8.0, 9.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn samples_mix_by_one_weight_or_by_their_own() {
        for (shape, weight, expected) in
            [(vec![], vec![0.25], [2.5, 3.5, 4.5, 5.5]), (vec![2], vec![1.0, 0.5], [1.0, 2.0, 4.0, 5.0])]
        {
            let mut b = Builder::new(Mode::Train);
            let x = b.feed("x", DType::F32, [2, 2]).expect("a new name");
            let y = b.feed("y", DType::F32, [2, 2]).expect("a new name");
            let w = b.feed("w", DType::F32, shape).expect("a new name");
            let mixed = mix(&mut b.graph, x, y, w).expect("a legal graph");
            b.graph.output("mixed", mixed);
            let mut run = Interpreter::new(&b.graph);
            run.set("x", &[1.0, 2.0, 3.0, 4.0]);
            run.set("y", &[3.0, 4.0, 5.0, 6.0]);
            run.set("w", &weight);
            run.run();
            assert_eq!(run.output("mixed").data, expected);
        }
    }
}
