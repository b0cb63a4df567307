//! The arithmetic that kernels really do, beside that by which a model is defined.

use bessemer_cpu::Executor;
use bessemer_ir::ops::Op;
use bessemer_ir::ops::conv::Geometry;
use bessemer_ir::{Graph, NodeId};

/// How the names of kernels begin that compute convolutions by Winograd's F(4x4, 3x3).
const WINOGRAD: &str = "Winograd 4x4";
/// Lines and columns of outputs in a tile of it, and products for each tile and pair of channels.
const TILE: usize = 4;
const TILE_PRODUCTS: usize = 36;

/// FLOPs of convolutions and matrix products, those of attention included, that the kernels of one micro-batch do, a multiply-add
/// counted as two. What is computed again counts again; of Winograd's algorithm the multiplications of its tiles count, without
/// the additions of its transforms.
pub fn hardware_flops(executor: &Executor) -> u64 {
    let plan = executor.plan();
    let calls = plan.steps.iter().zip(executor.kernel_names());
    calls.map(|(step, kernel)| call_flops(&plan.graph, step.node, kernel.starts_with(WINOGRAD))).sum()
}

fn call_flops(graph: &Graph, node: NodeId, by_winograd: bool) -> u64 {
    let types = graph.input_types(node);
    let op = &graph.node(node).op;
    let contraction = op.as_region().and_then(|region| region.anchor.as_deref()).unwrap_or(op);
    let tiled = match contraction.behind_prologue() {
        Op::Conv2d(conv) if by_winograd => Some((conv.geometry(&types[0].shape, &types[1].shape), true)),
        Op::Conv2dDataGrad(grad) if by_winograd => Some((grad.geometry(&types[0].shape, &types[1].shape), false)),
        _ => None,
    };
    match tiled {
        Some((geometry, is_forward)) => {
            winograd_flops(&geometry.expect("the node was accepted with these shapes"), is_forward)
        }
        None => op.rule().contraction_flops(&types),
    }
}

/// Tiles cover the output, or in the data gradient the input; those at the border are computed whole.
fn winograd_flops(geometry: &Geometry, is_forward: bool) -> u64 {
    let Geometry { batch, height, width, channels, out_channels, .. } = geometry;
    let lines = if is_forward { [height.output, width.output] } else { [height.input, width.input] };
    let tiles = batch * lines[0].div_ceil(TILE) * lines[1].div_ceil(TILE);
    (2 * tiles * TILE_PRODUCTS * channels * out_channels) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Prepared, Request};
    use crate::workload::{Mode, StepSettings};
    use bessemer_cpu::CpuOptions;
    use bessemer_ir::ops::conv::Conv2d;
    use bessemer_ir::passes::recompute::Recompute;
    use bessemer_ir::passes::{CompileOptions, compile};
    use bessemer_ir::{DType, Role, TensorType};
    use bessemer_train::recipe::Compute;

    /// One convolution with 3x3 windows at stride 1 of 64 channels each, on images of 14 by 14.
    fn convolution(options: &CompileOptions) -> Executor {
        let mut graph = Graph::new();
        let mut input = |name: &str, role, shape: [usize; 4]| {
            graph.input(name, role, TensorType::new(DType::F32, shape)).expect("a new name")
        };
        let x = input("x", Role::Feed, [2, 14, 14, 64]);
        let w = input("w", Role::Parameter, [3, 3, 64, 64]);
        let conv = Conv2d::new([1, 1], [[1, 1], [1, 1]]);
        let y = graph.add1(conv, &[x, w]).expect("a legal convolution");
        graph.output("y", y);
        let cpu = CpuOptions { threads: 1, ..CpuOptions::default() };
        let plan = compile(&graph, &cpu, options).expect("a legal graph");
        Executor::new(plan, cpu).expect("one small kernel")
    }

    #[test]
    fn tiles_of_winograd_are_counted_by_their_products() {
        let executor = convolution(&CompileOptions::default());
        let is_winograd = executor.kernel_names()[0].starts_with(WINOGRAD);
        assert!(is_winograd, "{:?}", executor.kernel_names());
        assert_eq!(hardware_flops(&executor), 2 * (2 * 4 * 4) * 36 * 64 * 64);
        let direct = convolution(&CompileOptions { precision: DType::Bf16, ..CompileOptions::default() });
        assert_eq!(hardware_flops(&direct), 2 * (2 * 14 * 14) * 9 * 64 * 64);
    }

    #[test]
    fn what_is_computed_again_counts_again() {
        let flops = |mode: Mode, recompute: Recompute, precision: Compute| {
            let request = Request {
                model: "resnet20-cifar".to_owned(),
                mode,
                batch_size: 2,
                fuse: true,
                precision,
                recompute,
                warmup: 0,
                steps: 1,
                repeat: 1,
                seed: 1,
                settings: StepSettings::default(),
                cpu: CpuOptions::default(),
            };
            let prepared = Prepared::new(&request).expect("a small model");
            (prepared.flops_per_sample(), prepared.hardware_flops_per_sample())
        };
        let (model, hardware) = flops(Mode::Infer, Recompute::None, Compute::Bf16);
        assert_eq!(model, hardware, "products of 16 bits are computed directly");
        let (model, hardware) = flops(Mode::Train, Recompute::None, Compute::Bf16);
        assert_eq!(model, hardware);
        let (model, hardware) = flops(Mode::Train, Recompute::Blocks, Compute::Bf16);
        assert!(hardware > 1.1 * model, "{hardware} and {model}");
    }
}
