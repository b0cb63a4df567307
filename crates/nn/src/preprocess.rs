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

impl PixelScale {
    /// What a pixel of each channel is multiplied by, and what is added then.
    fn factors(&self) -> ([f64; 3], [f64; 3]) {
        (self.std.map(|std| 1.0 / (255.0 * std)), std::array::from_fn(|i| -self.mean[i] / self.std[i]))
    }
}

/// `u8[N, H, W, 3]` to `f32`: `(x / 255 - mean) / std`, as one multiply-add a channel.
pub fn normalise(g: &mut Graph, images: Value, scale: &PixelScale) -> Result<Value> {
    let (factor, offset) = scale.factors();
    let x = g.cast(images, DType::F32)?;
    let factor = g.constant_vector(&factor)?;
    let offset = g.constant_vector(&offset)?;
    let scaled = g.mul(x, factor)?;
    g.add(scaled, offset)
}

/// The same with zeros outside the upper left corner of `sizes f32[N, 2]`, height and width of each image in pixels.
pub fn normalise_on_canvas(g: &mut Graph, images: Value, scale: &PixelScale, sizes: Value) -> Result<Value> {
    let shape = g.shape(images).clone();
    let &[batch, height, width, 3] = shape.dims() else { panic!("an image is [N, H, W, 3], not {shape}") };
    // Lines of pixels are rows of numbers: what belongs to a column is computed once.
    let line = 3 * width;
    let lines = g.reshape(images, [batch, height, line])?;
    let x = g.cast(lines, DType::F32)?;
    let mut is_inside = |axis: usize, positions: Vec<f64>| {
        let shape = if axis == 0 { [1, positions.len(), 1] } else { [1, 1, positions.len()] };
        let positions = g.constant_vector(&positions)?;
        let positions = g.reshape(positions, shape)?;
        let size = g.slice(sizes, &[0, axis], &[batch, axis + 1], &[1, 1])?;
        let size = g.reshape(size, [batch, 1, 1])?;
        g.binary(BinaryKind::Lt, positions, size)
    };
    let row_inside = is_inside(0, (0..height).map(|row| row as f64).collect())?;
    let column_inside = is_inside(1, (0..line).map(|number| (number / 3) as f64).collect())?;
    let (factor, offset) = scale.factors();
    let mut of_columns = |values: [f64; 3]| {
        let values = g.constant_vector(&values.repeat(width))?;
        let values = g.reshape(values, [1, 1, line])?;
        let zero = g.constant_like(values, 0.0)?;
        g.select(column_inside, values, zero)
    };
    let (factor, offset) = (of_columns(factor)?, of_columns(offset)?);
    let scaled = g.mul(x, factor)?;
    let shifted = g.add(scaled, offset)?;
    let zero = g.constant_like(shifted, 0.0)?;
    let inside = g.select(row_inside, shifted, zero)?;
    g.reshape(inside, shape)
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
        let x = b.feed("x", DType::U8, [2, 2, 3, 3]).expect("a new name");
        let sizes = b.feed("sizes", DType::F32, [2, 2]).expect("a new name");
        let canvas = normalise_on_canvas(&mut b.graph, x, &PixelScale::IMAGENET, sizes).expect("a legal graph");
        let everywhere = normalise(&mut b.graph, x, &PixelScale::IMAGENET).expect("a legal graph");
        b.graph.output("canvas", canvas);
        b.graph.output("everywhere", everywhere);
        let mut run = Interpreter::new(&b.graph);
        let pixels: Vec<f64> = (0..36).map(|i| f64::from(7 * i)).collect();
        run.set("x", &pixels);
        run.set("sizes", &[2.0, 2.0, 1.0, 3.0]);
        run.run();
        let inside = [[true, true, false, true, true, false], [true, true, true, false, false, false]].concat();
        for (i, (&y, &plain)) in run.output("canvas").data.iter().zip(&run.output("everywhere").data).enumerate() {
            assert_eq!(y, if inside[i / 3] { plain } else { 0.0 }, "number {i}");
        }
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
