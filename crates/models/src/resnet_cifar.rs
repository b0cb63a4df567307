//! ResNets for CIFAR-10: He, Zhang, Ren, Sun: "Deep residual learning for image recognition", 2015, section 4.2, with
//! shortcuts without weights (option A).

use crate::resnet::{Backbone, basic_branch, stem};
use bessemer_ir::Value;
use bessemer_nn::{Builder, Result};

/// Everything below the classifier: `[N, H, W, 3]` to `[N, C]`. Three stages of `depth` basic blocks each.
pub(crate) fn features(b: &mut Builder, images: Value, depth: usize, backbone: &Backbone) -> Result<Value> {
    let width = backbone.base_width;
    let mut x = b.frozen_if(backbone.freeze_at > 0, |b| stem(b, images, backbone.conv(width, 3, 1), backbone.norm))?;
    for stage in 0..3 {
        let name = format!("layer{}", stage + 1);
        x = b.frozen_if(stage + 1 < backbone.freeze_at, |b| {
            b.scope(&name, |b| layer(b, x, depth, width << stage, backbone))
        })?;
    }
    b.scope("avgpool", |b| b.global_avg_pool(x))
}

/// Blocks of one width; the first halves the image if the width grows.
fn layer(b: &mut Builder, mut x: Value, depth: usize, width: usize, backbone: &Backbone) -> Result<Value> {
    for index in 0..depth {
        let stride = if b.graph.shape(x).cols() == width { 1 } else { 2 };
        x = b.scope(&index.to_string(), |b| {
            let branch = basic_branch(b, x, width, stride, backbone)?;
            let shortcut = if stride == 1 { x } else { subsample(b, x, width)? };
            let sum = b.graph.add(branch, shortcut)?;
            b.graph.relu(sum)
        })?;
    }
    Ok(x)
}

/// Every second pixel, and as many channels of zeros before as after, `width` in all.
fn subsample(b: &mut Builder, x: Value, width: usize) -> Result<Value> {
    let shape = b.graph.shape(x).clone();
    let pixels = b.graph.slice(x, &[0; 4], &shape, &[1, 2, 2, 1])?;
    let zeros = [0, 0, 0, (width - shape.cols()) / 2];
    b.graph.pad(pixels, &zeros, &zeros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_ir::DType;
    use bessemer_ir::reference::Interpreter;
    use bessemer_nn::Mode;

    #[test]
    fn the_shortcut_keeps_every_second_pixel_between_zero_channels() {
        let mut b = Builder::new(Mode::Infer);
        let x = b.feed("x", DType::F32, [1, 3, 2, 2]).expect("a new name");
        let y = subsample(&mut b, x, 4).expect("a legal graph");
        b.graph.output("y", y);
        let mut run = Interpreter::new(&b.graph);
        run.set("x", &(1..=12).map(f64::from).collect::<Vec<_>>());
        run.run();
        assert_eq!(run.output("y").ty.shape.dims(), [1, 2, 1, 4]);
        assert_eq!(run.output("y").data, [0.0, 1.0, 2.0, 0.0, 0.0, 9.0, 10.0, 0.0]);
    }
}
