//! Features of regions, their gradient, and masks.

use super::{CallError, Kernel, Operands};
use crate::detection::masks::{self, MaskDesc, MaskRegions};
use crate::detection::roi::{self, RoiDesc, RoiGrad};
use crate::gemm::Ctx;
use crate::pool2d::Element;
use bessemer_ir::ops::detection::masks::MaskTargets;
use bessemer_ir::ops::detection::roi::{MOST_LEVELS, RoiAlign, RoiAlignGrad};
use bessemer_ir::{DType, TensorType};
use half::{bf16, f16};

/// The kernel for maps of one of the float types.
pub(super) fn align(op: &RoiAlign, types: &[&TensorType]) -> Box<dyn Kernel> {
    let (maps, boxes) = types.split_at(op.strides.len());
    let desc = RoiDesc {
        rule: op.clone(),
        batch: maps[0].shape[0],
        rois: boxes[0].shape[0],
        channels: maps[0].shape[3],
        maps: maps.iter().map(|map| [map.shape[1], map.shape[2]]).collect(),
    };
    Box::new(Align { desc, dtype: maps[0].dtype })
}

/// The kernel for gradients of one of the float types.
pub(super) fn align_grad(op: &RoiAlignGrad, types: &[&TensorType]) -> Box<dyn Kernel> {
    let dy = types[0];
    let desc = RoiDesc {
        rule: op.roi_align.clone(),
        batch: op.batch,
        rois: dy.shape[0],
        channels: dy.shape[3],
        maps: op.maps.clone(),
    };
    Box::new(AlignGrad { desc, dtype: dy.dtype })
}

pub(super) fn mask_targets(op: &MaskTargets, types: &[&TensorType]) -> Box<dyn Kernel> {
    let (crops, regions) = (&types[0].shape, &types[2].shape);
    let desc = MaskDesc { rule: *op, batch: crops[0], truths: crops[1], crop: crops[2], regions: regions[0] };
    Box::new(Masks(desc))
}

struct Align {
    desc: RoiDesc,
    dtype: DType,
}

impl Align {
    /// # Safety
    /// As for [`Kernel::run`]; maps and features are of the type.
    unsafe fn run_of<T: Element>(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let d = &self.desc;
        let levels = d.maps.len();
        // SAFETY: the caller's promise.
        unsafe {
            let map = |map: usize| if map < levels { operands.input::<T>(map, d.map_len(map)) } else { &[] };
            let maps: [&[T]; MOST_LEVELS] = std::array::from_fn(map);
            let (boxes, images) = (operands.floats(levels, 4 * d.rois), operands.input(levels + 1, d.rois));
            let features = operands.output(d.features_len());
            roi::roi_align(ctx, d, &maps[..levels], boxes, images, features, operands.scratch())?;
        }
        Ok(())
    }
}

impl Kernel for Align {
    fn name(&self) -> String {
        "features of regions".to_string()
    }

    fn scratch_len(&self, _threads: usize) -> usize {
        self.desc.scratch_len()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe {
            match self.dtype {
                DType::Bf16 => self.run_of::<bf16>(ctx, operands),
                DType::F16 => self.run_of::<f16>(ctx, operands),
                _ => self.run_of::<f32>(ctx, operands),
            }
        }
    }
}

struct AlignGrad {
    desc: RoiDesc,
    dtype: DType,
}

impl AlignGrad {
    /// # Safety
    /// As for [`Kernel::run`]; gradients are of the type.
    unsafe fn operands<'a, T>(&self, operands: &Operands<'a>) -> (RoiGrad<'a, T>, [&'a mut [T]; MOST_LEVELS]) {
        let d = &self.desc;
        // SAFETY: the caller's promise.
        unsafe {
            let (dy, boxes) = (operands.input(0, d.features_len()), operands.floats(1, 4 * d.rois));
            let grad = |map: usize| match map < d.maps.len() {
                true => operands.output_at(map, d.map_len(map)),
                false => &mut [],
            };
            (RoiGrad { dy, boxes, images: operands.input(2, d.rois) }, std::array::from_fn(grad))
        }
    }

    /// # Safety
    /// As for [`Kernel::run`]; gradients are of the type.
    unsafe fn run_16<T: Element>(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe {
            let (inputs, mut grads) = self.operands::<T>(operands);
            roi::roi_align_grad_16(ctx, &self.desc, &inputs, &mut grads, operands.scratch())?;
        }
        Ok(())
    }
}

impl Kernel for AlignGrad {
    fn name(&self) -> String {
        "gradient of features of regions".to_string()
    }

    fn scratch_len(&self, threads: usize) -> usize {
        match self.dtype {
            DType::F32 => self.desc.grad_scratch_len(),
            _ => self.desc.grad_16_scratch_len(threads),
        }
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe {
            match self.dtype {
                DType::Bf16 => self.run_16::<bf16>(ctx, operands),
                DType::F16 => self.run_16::<f16>(ctx, operands),
                _ => {
                    let (inputs, mut grads) = self.operands::<f32>(operands);
                    Ok(roi::roi_align_grad(ctx, &self.desc, &inputs, &mut grads, operands.scratch())?)
                }
            }
        }
    }
}

struct Masks(MaskDesc);

impl Kernel for Masks {
    fn name(&self) -> String {
        "masks of regions".to_string()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let d = &self.0;
        // SAFETY: the caller's promise.
        unsafe {
            let (crops, truths) = (operands.input(0, d.crops_len()), operands.floats(1, 4 * d.batch * d.truths));
            let regions = MaskRegions {
                boxes: operands.floats(2, 4 * d.regions),
                images: operands.input(3, d.regions),
                truths: operands.input(4, d.regions),
            };
            masks::mask_targets(ctx, d, crops, truths, regions, operands.output(d.masks_len()))?;
        }
        Ok(())
    }
}
