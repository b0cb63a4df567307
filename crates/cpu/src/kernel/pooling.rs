//! Pooling and its gradients.

use super::{CallError, Kernel, Operands, Unsupported, only_f32};
use crate::gemm::Ctx;
use crate::pool2d::{self, Element, PoolDesc};
use bessemer_ir::ops::pool::{AvgPool2d, AvgPool2dGrad, Geometry, MaxPool2d, MaxPool2dGrad};
use bessemer_ir::{DType, TensorType};
use half::{bf16, f16};

fn desc(geometry: &Geometry) -> PoolDesc {
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

/// The kernel for an input of one of the float types.
pub(super) fn max(pool: &MaxPool2d, types: &[&TensorType]) -> Result<Box<dyn Kernel>, Unsupported> {
    Ok(Box::new(Max { desc: desc(&pool.geometry(&types[0].shape)?), dtype: types[0].dtype }))
}

/// The kernel for input, output and output gradient of one of the float types.
pub(super) fn max_grad(grad: &MaxPool2dGrad, types: &[&TensorType]) -> Result<Box<dyn Kernel>, Unsupported> {
    Ok(Box::new(MaxGrad { desc: desc(&grad.pool.geometry(&types[0].shape)?), dtype: types[0].dtype }))
}

/// The kernel for an `f32` input.
///
/// # Errors
/// When it is of another type.
pub(super) fn average(pool: &AvgPool2d, types: &[&TensorType]) -> Result<Box<dyn Kernel>, Unsupported> {
    only_f32(types)?;
    let desc = desc(&pool.geometry(&types[0].shape)?);
    Ok(Box::new(Average { desc, count_include_pad: pool.count_include_pad }))
}

/// The kernel for an `f32` output gradient.
///
/// # Errors
/// When it is of another type.
pub(super) fn average_grad(grad: &AvgPool2dGrad, types: &[&TensorType]) -> Result<Box<dyn Kernel>, Unsupported> {
    only_f32(types)?;
    let desc = desc(&grad.geometry(&types[0].shape)?);
    Ok(Box::new(AverageGrad { desc, count_include_pad: grad.pool.count_include_pad }))
}

struct Max {
    desc: PoolDesc,
    dtype: DType,
}

/// # Safety
/// As for [`Kernel::run`]; input and output are of the type.
unsafe fn max_of<T: Element>(ctx: Ctx<'_>, d: &PoolDesc, operands: &Operands<'_>) {
    // SAFETY: the caller's promise.
    unsafe { pool2d::max_pool::<T>(ctx, d, operands.input(0, d.x_len()), operands.output(d.y_len())) }
}

impl Kernel for Max {
    fn name(&self) -> String {
        "max pool".to_string()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe {
            match self.dtype {
                DType::Bf16 => max_of::<bf16>(ctx, &self.desc, operands),
                DType::F16 => max_of::<f16>(ctx, &self.desc, operands),
                _ => max_of::<f32>(ctx, &self.desc, operands),
            }
        }
        Ok(())
    }
}

struct MaxGrad {
    desc: PoolDesc,
    dtype: DType,
}

/// # Safety
/// As for [`Kernel::run`]; the operands are of the type.
unsafe fn max_grad_16<T: Element>(ctx: Ctx<'_>, d: &PoolDesc, operands: &Operands<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        let [x, y, dy] = [(0, d.x_len()), (1, d.y_len()), (2, d.y_len())].map(|(i, len)| operands.input::<T>(i, len));
        pool2d::max_pool_grad_16(ctx, d, x, y, dy, operands.output(d.x_len()), operands.scratch());
    }
}

impl Kernel for MaxGrad {
    fn name(&self) -> String {
        "max pool gradient".to_string()
    }

    fn scratch_len(&self, threads: usize) -> usize {
        if self.dtype == DType::F32 { 0 } else { self.desc.sums_len(threads) }
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let d = &self.desc;
        // SAFETY: the caller's promise.
        unsafe {
            match self.dtype {
                DType::Bf16 => max_grad_16::<bf16>(ctx, d, operands),
                DType::F16 => max_grad_16::<f16>(ctx, d, operands),
                _ => {
                    let [x, y, dy] =
                        [(0, d.x_len()), (1, d.y_len()), (2, d.y_len())].map(|(i, len)| operands.floats(i, len));
                    pool2d::max_pool_grad(ctx, d, x, y, dy, operands.output(d.x_len()));
                }
            }
        }
        Ok(())
    }
}

struct Average {
    desc: PoolDesc,
    count_include_pad: bool,
}

impl Kernel for Average {
    fn name(&self) -> String {
        "average pool".to_string()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let d = &self.desc;
        // SAFETY: the caller's promise.
        unsafe {
            let (x, y) = (operands.floats(0, d.x_len()), operands.output(d.y_len()));
            pool2d::avg_pool(ctx, d, self.count_include_pad, x, y);
        }
        Ok(())
    }
}

struct AverageGrad {
    desc: PoolDesc,
    count_include_pad: bool,
}

impl Kernel for AverageGrad {
    fn name(&self) -> String {
        "average pool gradient".to_string()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let d = &self.desc;
        // SAFETY: the caller's promise.
        unsafe {
            let (dy, dx) = (operands.floats(0, d.y_len()), operands.output(d.x_len()));
            pool2d::avg_pool_grad(ctx, d, self.count_include_pad, dy, dx);
        }
        Ok(())
    }
}
