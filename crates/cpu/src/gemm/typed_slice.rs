//! Operands of kernels: floating-point elements in memory, of 32 or 16 bits, which kernels read as `f32`.

use super::memory::SharedMut;
use super::tile_loop::MemoryBlock;
use crate::simd::Simd;
use crate::vector;
use bessemer_ir::DType;
use std::marker::PhantomData;

/// Elements that a kernel reads.
#[derive(Clone, Copy)]
pub struct TypedSlice<'a> {
    start: TypedPtr,
    len: usize,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> TypedSlice<'a> {
    /// # Safety
    /// `start` is valid for reads of `len` elements of type `dtype` during `'a`, and aligned to it.
    ///
    /// # Panics
    /// If the type is no float.
    pub unsafe fn from_raw(start: *const u8, dtype: DType, len: usize) -> TypedSlice<'a> {
        assert!(dtype.is_float(), "kernels multiply floats, not {dtype}");
        TypedSlice { start: TypedPtr { address: start, dtype }, len, memory: PhantomData }
    }

    pub(crate) fn dtype(&self) -> DType {
        self.start.dtype
    }

    /// The first of at least `needed` elements.
    pub(crate) fn checked(&self, needed: usize, name: &str) -> TypedPtr {
        assert!(self.len >= needed, "{name} has {} elements, {needed} are needed", self.len);
        self.start
    }
}

impl<'a> From<&'a [f32]> for TypedSlice<'a> {
    fn from(slice: &'a [f32]) -> TypedSlice<'a> {
        let start = TypedPtr { address: slice.as_ptr().cast(), dtype: DType::F32 };
        TypedSlice { start, len: slice.len(), memory: PhantomData }
    }
}

impl<'a> From<&'a Vec<f32>> for TypedSlice<'a> {
    fn from(vector: &'a Vec<f32>) -> TypedSlice<'a> {
        vector.as_slice().into()
    }
}

impl<'a> From<&'a [half::bf16]> for TypedSlice<'a> {
    fn from(slice: &'a [half::bf16]) -> TypedSlice<'a> {
        let start = TypedPtr { address: slice.as_ptr().cast(), dtype: DType::Bf16 };
        TypedSlice { start, len: slice.len(), memory: PhantomData }
    }
}

impl<'a> From<&'a [half::f16]> for TypedSlice<'a> {
    fn from(slice: &'a [half::f16]) -> TypedSlice<'a> {
        let start = TypedPtr { address: slice.as_ptr().cast(), dtype: DType::F16 };
        TypedSlice { start, len: slice.len(), memory: PhantomData }
    }
}

/// A place among elements.
#[derive(Clone, Copy)]
pub(crate) struct TypedPtr {
    address: *const u8,
    dtype: DType,
}

// SAFETY: a pointer is plain data; who follows it states why that is sound.
unsafe impl Sync for TypedPtr {}

impl TypedPtr {
    /// The place `count` elements on, which may lie outside the elements.
    #[inline(always)]
    pub(crate) fn offset(self, count: isize) -> TypedPtr {
        let bytes = count.wrapping_mul(self.dtype.size() as isize);
        TypedPtr { address: self.address.wrapping_offset(bytes), ..self }
    }

    /// As [`offset`](Self::offset).
    #[inline(always)]
    pub(crate) fn add(self, count: usize) -> TypedPtr {
        self.offset(count as isize)
    }

    /// The elements themselves where they need no conversion.
    #[inline(always)]
    pub(crate) fn as_f32(self) -> Option<*const f32> {
        (self.dtype == DType::F32).then_some(self.address.cast())
    }

    /// Copies `len` elements to `dst`.
    ///
    /// # Safety
    /// They are there, and `dst` has room for them. Called under `S::run_op`.
    #[inline(always)]
    pub(crate) unsafe fn copy<S: Simd>(self, dst: *mut f32, len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.dtype {
                DType::F32 => S::copy(self.address.cast(), dst, len),
                _ => self.widen(std::slice::from_raw_parts_mut(dst, len)),
            }
        }
    }

    /// Copies `dst.len()` elements.
    ///
    /// # Safety
    /// They are there.
    #[inline(always)]
    pub(crate) unsafe fn widen(self, dst: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { vector::widen(self.dtype, self.address, dst) }
    }

    /// Copies `len` 16-bit elements as they are.
    ///
    /// # Safety
    /// They are there, of such a type, and `dst` has room for them. Called under `S::run_op`.
    #[inline(always)]
    pub(crate) unsafe fn copy_16<S: Simd>(self, dst: *mut u16, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { S::copy_16(self.as_16(), dst, len) }
    }

    /// Where 16-bit elements lie.
    #[inline(always)]
    pub(crate) fn as_16(self) -> *const u16 {
        self.address.cast()
    }

    /// Pairs of neighbours of 16 bits as elements of 32 bits.
    #[inline(always)]
    pub(crate) fn as_words(self) -> TypedPtr {
        TypedPtr { dtype: DType::F32, ..self }
    }

    /// One number of 16 bits.
    ///
    /// # Safety
    /// It is there and has 16 bits.
    #[inline(always)]
    pub(crate) unsafe fn bits_16(self) -> u16 {
        // SAFETY: the caller's promise.
        unsafe { self.address.cast::<u16>().read() }
    }

    /// The memory of `len` elements in a row, as a hint for prefetching.
    pub(crate) fn run(self, len: usize) -> MemoryBlock {
        MemoryBlock::contiguous(self.address.cast(), (len * self.dtype.size()).div_ceil(size_of::<f32>()))
    }

    /// The memory of `rows` runs of `cols` elements, `pitch` apart, as a hint for prefetching.
    pub(crate) fn memory(self, rows: usize, cols: usize, pitch: usize) -> MemoryBlock {
        let scaled = |elements: usize| (elements * self.dtype.size()).div_ceil(size_of::<f32>());
        MemoryBlock { start: self.address.cast(), rows, cols: scaled(cols), pitch: scaled(pitch) }
    }
}

/// The second operand of a product.
#[derive(Clone, Copy)]
pub enum Weights<'a> {
    /// As it lies in tensors.
    Plain(TypedSlice<'a>),
    /// Packed before, for this shape and instruction set.
    Packed(&'a [f32]),
}

impl<'a, T: Into<TypedSlice<'a>>> From<T> for Weights<'a> {
    fn from(elements: T) -> Weights<'a> {
        Weights::Plain(elements.into())
    }
}

/// The first of at least `needed` packed elements.
pub(crate) fn packed_start(packed: &[f32], needed: usize, name: &str) -> SharedMut {
    assert!(packed.len() >= needed, "packed {name} has {} elements, {needed} are needed", packed.len());
    SharedMut(packed.as_ptr().cast_mut())
}
