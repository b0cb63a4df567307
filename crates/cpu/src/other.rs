//! Kernels that are neither products nor regions: attention, pooling, reductions, layouts, indices, normal random numbers.

use crate::attention::AttentionDesc;
use crate::gemm::Ctx;
use crate::index;
use crate::kernel::{Operands, Unsupported};
use crate::layout::{self, StridedCopy};
use crate::pool2d::{self, Element, PoolDesc};
use crate::random::{self, Stream};
use crate::rowwise;
use bessemer_ir::ops::Op;
use bessemer_ir::ops::pool::Geometry;
use bessemer_ir::ops::reduce::{Reduce, ReduceKind};
use bessemer_ir::ops::source::{Distribution, Random};
use bessemer_ir::{DType, Shape, TensorType};
use half::{bf16, f16};

/// A kernel with its sizes.
pub(crate) enum Other {
    MaxPool {
        desc: PoolDesc,
        dtype: DType,
    },
    MaxPoolGrad {
        desc: PoolDesc,
        dtype: DType,
    },
    AvgPool {
        desc: PoolDesc,
        count_include_pad: bool,
    },
    AvgPoolGrad {
        desc: PoolDesc,
        count_include_pad: bool,
    },
    /// `[outer, middle, inner]` over the middle axis.
    Reduce {
        kind: ReduceKind,
        dims: [usize; 3],
    },
    ArgMax {
        rows: usize,
        cols: usize,
    },
    /// Copies of the inputs, in order, into the output, which is zeroed first if they do not fill it.
    Copies {
        copies: Vec<StridedCopy>,
        zeroed_bytes: usize,
    },
    Gather {
        table_bytes: usize,
        row_bytes: usize,
        indices: usize,
    },
    ScatterAdd {
        updates: usize,
        width: usize,
        indices: usize,
        out: usize,
    },
    Normal {
        random: Random,
        elements: usize,
    },
    Attention(AttentionDesc),
    AttentionGrad(AttentionDesc),
}

fn pool(geometry: &Geometry) -> PoolDesc {
    let Geometry { batch, height, width, channels } = *geometry;
    PoolDesc {
        n: batch,
        h: height.input,
        w: width.input,
        c: channels,
        oh: height.output,
        ow: width.output,
        window: [height.kernel, width.kernel],
        stride: [height.stride, width.stride],
        pad: [height.low, width.low],
    }
}

/// The shape as `[outer, middle, inner]` with the reduced axes in the middle, if these are neighbours.
fn reduction(shape: &Shape, axes: &[usize]) -> Option<[usize; 3]> {
    let (first, last) = (*axes.first()?, *axes.last()?);
    (last - first + 1 == axes.len()).then(|| {
        let product = |dims: &[usize]| dims.iter().product();
        [product(&shape[..first]), product(&shape[first..=last]), product(&shape[last + 1..])]
    })
}

/// # Safety
/// As for [`crate::kernel::Kernel::run`]; input and output are of the type.
unsafe fn max_pool<T: Element>(ctx: Ctx<'_>, d: &PoolDesc, operands: &Operands<'_>) {
    // SAFETY: the caller's promise.
    unsafe { pool2d::max_pool::<T>(ctx, d, operands.input(0, d.x_len()), operands.output(d.y_len())) }
}

/// # Safety
/// As for [`max_pool`].
unsafe fn max_pool_grad_16<T: Element>(ctx: Ctx<'_>, d: &PoolDesc, operands: &Operands<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        let [x, y, dy] = [(0, d.x_len()), (1, d.y_len()), (2, d.y_len())].map(|(i, len)| operands.input::<T>(i, len));
        pool2d::max_pool_grad_16(ctx, d, x, y, dy, operands.output(d.x_len()), operands.scratch());
    }
}

impl Other {
    pub(crate) fn lower(op: &Op, inputs: &[&TensorType], outputs: &[TensorType]) -> Result<Other, Unsupported> {
        let geometry = |g: Result<Geometry, String>| g.map(|g| pool(&g)).map_err(Unsupported);
        let is_copy = matches!(op, Op::Transpose(_) | Op::Slice(_) | Op::Pad(_) | Op::Concat(_) | Op::Broadcast(_));
        let is_max_pool = matches!(op, Op::MaxPool2d(_) | Op::MaxPool2dGrad(_)) && inputs[0].dtype.is_float();
        let takes_any = is_copy
            || is_max_pool
            || matches!(op, Op::Gather(_) | Op::Random(_) | Op::Attention(_) | Op::AttentionGrad(_));
        if let Some(odd) = inputs.iter().find(|t| !matches!(t.dtype, DType::F32 | DType::I32))
            && !takes_any
        {
            return Err(Unsupported(format!("operands must be f32, one is {odd}")));
        }
        let x = inputs[0];
        let element = x.dtype.size();
        let one_copy = |copy: StridedCopy| Ok(Other::Copies { copies: vec![copy], zeroed_bytes: 0 });
        match op {
            Op::MaxPool2d(pool) => Ok(Other::MaxPool { desc: geometry(pool.geometry(&x.shape))?, dtype: x.dtype }),
            Op::MaxPool2dGrad(grad) => {
                Ok(Other::MaxPoolGrad { desc: geometry(grad.pool.geometry(&x.shape))?, dtype: x.dtype })
            }
            Op::AvgPool2d(pool) => Ok(Other::AvgPool {
                desc: geometry(pool.geometry(&x.shape))?,
                count_include_pad: pool.count_include_pad,
            }),
            Op::AvgPool2dGrad(grad) => Ok(Other::AvgPoolGrad {
                desc: geometry(grad.geometry(&x.shape))?,
                count_include_pad: grad.pool.count_include_pad,
            }),
            Op::Reduce(Reduce { kind, axes, .. }) if x.dtype == DType::F32 => match reduction(&x.shape, axes) {
                Some(dims) => Ok(Other::Reduce { kind: *kind, dims }),
                None => Err(Unsupported("reduction over axes that are no neighbours".to_string())),
            },
            Op::ArgMax(_) => Ok(Other::ArgMax { rows: x.shape.rows(), cols: x.shape.cols() }),
            Op::Transpose(transpose) => one_copy(StridedCopy::transpose(element, &x.shape, &transpose.perm)),
            Op::Slice(slice) => one_copy(StridedCopy::slice(element, &x.shape, &slice.start, &slice.stop, &slice.step)),
            Op::Broadcast(_) => one_copy(StridedCopy::broadcast(element, &x.shape, &outputs[0].shape)),
            Op::Pad(pad) => Ok(Other::Copies {
                copies: vec![StridedCopy::pad(element, &x.shape, &pad.low, &pad.interior, &outputs[0].shape)],
                zeroed_bytes: outputs[0].bytes(),
            }),
            Op::Concat(concat) => {
                let total = outputs[0].shape[concat.axis];
                let mut start = 0;
                let mut copies = Vec::new();
                for part in inputs {
                    copies.push(StridedCopy::concat(element, &part.shape, concat.axis, start, total));
                    start += part.shape[concat.axis];
                }
                Ok(Other::Copies { copies, zeroed_bytes: 0 })
            }
            Op::Gather(_) => {
                let rows = x.shape.first().copied().unwrap_or(1).max(1);
                let (table_bytes, indices) = (x.bytes(), inputs[1].shape.elements());
                Ok(Other::Gather { table_bytes, row_bytes: table_bytes / rows, indices })
            }
            Op::ScatterAdd(_) => {
                let (updates, indices) = (x.shape.elements(), inputs[1].shape.elements());
                let out = outputs[0].shape.elements();
                Ok(Other::ScatterAdd { updates, width: updates / indices.max(1), indices, out })
            }
            Op::Random(random @ Random { distribution: Distribution::Normal, .. }) => {
                Ok(Other::Normal { random: random.clone(), elements: random.shape.elements() })
            }
            Op::Attention(attention) => AttentionDesc::new(attention, inputs).map(Other::Attention),
            Op::AttentionGrad(grad) => AttentionDesc::new(&grad.attention, inputs).map(Other::AttentionGrad),
            _ => Err(Unsupported("no kernel".to_string())),
        }
    }

    /// How it computes, in a few words.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Other::MaxPool { .. } => "max pool",
            Other::MaxPoolGrad { .. } => "max pool gradient",
            Other::AvgPool { .. } => "average pool",
            Other::AvgPoolGrad { .. } => "average pool gradient",
            Other::Reduce { .. } => "reduction",
            Other::ArgMax { .. } => "arg-max by rows",
            Other::Copies { .. } => "strided copy",
            Other::Gather { .. } => "gather",
            Other::ScatterAdd { .. } => "scatter-add",
            Other::Normal { .. } => "normal random numbers",
            Other::Attention(_) => "attention by blocks of queries",
            Other::AttentionGrad(_) => "attention gradient by blocks of queries",
        }
    }

    /// `f32` elements of scratch with so many threads.
    pub(crate) fn scratch_len(&self, threads: usize) -> usize {
        match self {
            Other::MaxPoolGrad { desc, dtype } if *dtype != DType::F32 => desc.sums_len(threads),
            Other::Reduce { dims, .. } => rowwise::reduce_scratch_len(*dims),
            Other::Attention(desc) => desc.forward_scratch_len(threads),
            Other::AttentionGrad(desc) => desc.backward_scratch_len(threads),
            _ => 0,
        }
    }

    /// # Safety
    /// As for [`crate::kernel::Kernel::run`].
    ///
    /// # Errors
    /// An index out of range.
    pub(crate) unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), String> {
        // SAFETY: operands have the types and sizes the kernel was lowered for, which is the caller's promise.
        unsafe {
            let floats = |index, len| operands.floats(index, len);
            match self {
                Other::MaxPool { desc, dtype } => match dtype {
                    DType::Bf16 => max_pool::<bf16>(ctx, desc, operands),
                    DType::F16 => max_pool::<f16>(ctx, desc, operands),
                    _ => max_pool::<f32>(ctx, desc, operands),
                },
                Other::MaxPoolGrad { desc, dtype } => match dtype {
                    DType::Bf16 => max_pool_grad_16::<bf16>(ctx, desc, operands),
                    DType::F16 => max_pool_grad_16::<f16>(ctx, desc, operands),
                    _ => {
                        let (x, y, dy) = (floats(0, desc.x_len()), floats(1, desc.y_len()), floats(2, desc.y_len()));
                        pool2d::max_pool_grad(ctx, desc, x, y, dy, operands.output(desc.x_len()));
                    }
                },
                Other::AvgPool { desc: d, count_include_pad } => {
                    pool2d::avg_pool(ctx, d, *count_include_pad, floats(0, d.x_len()), operands.output(d.y_len()));
                }
                Other::AvgPoolGrad { desc: d, count_include_pad } => {
                    pool2d::avg_pool_grad(ctx, d, *count_include_pad, floats(0, d.y_len()), operands.output(d.x_len()));
                }
                Other::Reduce { kind, dims } => {
                    let x = floats(0, dims.iter().product());
                    rowwise::reduce(ctx, *kind, *dims, x, operands.output(dims[0] * dims[2]), operands.scratch());
                }
                Other::ArgMax { rows, cols } => {
                    rowwise::arg_max(ctx, floats(0, rows * cols), *cols, operands.output(*rows));
                }
                Other::Copies { copies, zeroed_bytes } => {
                    layout::zero(ctx, operands.output(*zeroed_bytes));
                    for (copy, &input) in copies.iter().zip(operands.inputs) {
                        copy.run(ctx, input, operands.outputs[0]);
                    }
                }
                Other::Gather { table_bytes, row_bytes, indices } => {
                    let (table, list) = (operands.input(0, *table_bytes), operands.input(1, *indices));
                    let out = operands.output(indices * row_bytes);
                    index::gather(ctx, table, *row_bytes, list, out).map_err(|e| e.to_string())?;
                }
                Other::ScatterAdd { updates, width, indices, out } => {
                    let (updates, list) = (floats(0, *updates), operands.input(1, *indices));
                    let out = operands.output(*out);
                    index::scatter_add(ctx, updates, *width, list, out).map_err(|e| e.to_string())?;
                }
                Other::Normal { random, elements } => {
                    let step: &[i32] = operands.input(0, 1);
                    let stream = Stream { seed: random.seed, step: step[0] as u32, stream: random.stream };
                    random::normal(ctx, stream, operands.output(*elements));
                }
                Other::Attention(desc) => desc.run_forward(ctx, operands),
                Other::AttentionGrad(desc) => desc.run_backward(ctx, operands),
            }
        }
        Ok(())
    }
}
