//! Prologue of a product: a scale and a shift for each channel of its first operand, and ReLU, applied while the operand is
//! packed. A batch norm whose statistics are known has this form; the gates of squeeze and excite are scales
//! per image and channel.

use super::Ctx;
use super::typed_slice::{TypedPtr, TypedSlice};
use crate::simd::{PanelFormat, Simd};
use bessemer_ir::DType;

/// `x * scale + shift` with a scale and a shift for each channel, and optionally ReLU.
#[derive(Clone, Copy)]
pub struct Affine<'a> {
    /// `[C]`, or `[N, C]` with separate scales per image.
    pub scale: &'a [f32],
    /// Whether `scale` is `[N, C]`.
    pub by_image: bool,
    /// One element for each channel.
    pub shift: &'a [f32],
    /// Whether ReLU follows the shift.
    pub relu: bool,
}

/// The first operand of a product.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    pub(crate) elements: TypedSlice<'a>,
    pub(crate) affine: Option<Affine<'a>>,
}

impl<'a> Input<'a> {
    /// Elements that are scaled and shifted while they are read.
    pub fn affine(elements: impl Into<TypedSlice<'a>>, affine: Affine<'a>) -> Input<'a> {
        Input { elements: elements.into(), affine: Some(affine) }
    }

    /// The format of its products with another operand of this type.
    pub(crate) fn panel_format(&self, ctx: Ctx<'_>, other: DType) -> PanelFormat {
        match self.affine {
            None => ctx.panel_format(self.elements.dtype(), other),
            Some(_) => PanelFormat::F32,
        }
    }
}

impl<'a, T: Into<TypedSlice<'a>>> From<T> for Input<'a> {
    fn from(elements: T) -> Input<'a> {
        Input { elements: elements.into(), affine: None }
    }
}

impl Affine<'_> {
    /// The places of the elements of `channels` channels of `images` images.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn checked(&self, images: usize, channels: usize) -> AffinePtr {
        let scales = if self.by_image { images * channels } else { channels };
        for (name, elements, needed) in [("scale", self.scale, scales), ("shift", self.shift, channels)] {
            assert!(elements.len() >= needed, "the {name} has {} elements, {needed} are needed", elements.len());
        }
        let floor = if self.relu { 0.0 } else { f32::NEG_INFINITY };
        let image_pitch = if self.by_image { channels } else { 0 };
        AffinePtr { scale: self.scale.as_ptr(), shift: self.shift.as_ptr(), floor, image_pitch }
    }
}

/// An [`Affine`] from some channel on.
#[derive(Clone, Copy)]
pub(crate) struct AffinePtr {
    scale: *const f32,
    shift: *const f32,
    floor: f32,
    /// Elements from the scales of an image to those of the next.
    image_pitch: usize,
}

// SAFETY: only read, and whoever builds one vouches for its extent.
unsafe impl Sync for AffinePtr {}

impl AffinePtr {
    /// With the scales of image number `image`, where `self` has those of the first one.
    #[inline(always)]
    pub(crate) fn of_image(self, image: usize) -> AffinePtr {
        AffinePtr { scale: self.scale.wrapping_add(image * self.image_pitch), ..self }
    }

    /// From `channel` on.
    #[inline(always)]
    pub(crate) fn at(self, channel: usize) -> AffinePtr {
        AffinePtr { scale: self.scale.wrapping_add(channel), shift: self.shift.wrapping_add(channel), ..self }
    }

    /// A vector of channels.
    ///
    /// # Safety
    /// The channels are there. Called under `S::run_op`.
    #[inline(always)]
    pub(crate) unsafe fn vector<S: Simd>(self) -> AffineVector<S> {
        // SAFETY: the caller's promise.
        unsafe { AffineVector { scale: S::load(self.scale), shift: S::load(self.shift), floor: S::splat(self.floor) } }
    }

    /// Copies `len` channels of `src` to `dst`, scaled and shifted.
    ///
    /// # Safety
    /// They are there, and `dst` has room for them. Called under `S::run_op`.
    #[inline(always)]
    pub(crate) unsafe fn copy<S: Simd>(self, src: TypedPtr, dst: *mut f32, len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match src.as_f32() {
                Some(src) => self.copy_f32::<S>(src, dst, len),
                None => {
                    src.copy::<S>(dst, len);
                    self.copy_f32::<S>(dst, dst, len);
                }
            }
        }
    }

    /// As [`copy`](Self::copy); both may be the same.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy).
    #[inline(always)]
    pub(crate) unsafe fn copy_f32<S: Simd>(self, src: *const f32, dst: *mut f32, len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let whole = len / S::LANES * S::LANES;
            for i in (0..whole).step_by(S::LANES) {
                S::store(dst.add(i), self.at(i).vector::<S>().apply(S::load(src.add(i))));
            }
            for i in whole..len {
                let y = *src.add(i) * *self.scale.add(i) + *self.shift.add(i);
                *dst.add(i) = if self.floor > y { self.floor } else { y };
            }
        }
    }
}

/// An [`Affine`] of as many channels as a vector has lanes.
#[derive(Clone, Copy)]
pub(crate) struct AffineVector<S: Simd> {
    scale: S::V,
    shift: S::V,
    floor: S::V,
}

impl<S: Simd> AffineVector<S> {
    /// # Safety
    /// Called under `S::run_op`.
    #[inline(always)]
    pub(crate) unsafe fn apply(self, x: S::V) -> S::V {
        // SAFETY: the caller's promise. Not fused, as pointwise operations are not.
        unsafe { S::max(self.floor, S::add(S::mul(x, self.scale), self.shift)) }
    }
}
