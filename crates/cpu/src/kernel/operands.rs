//! Where the operands of a kernel call lie.

use crate::fusion::FusionIo;
use crate::gemm::TypedSlice;
use bessemer_ir::DType;

/// Places of a node's operands while it runs.
pub(crate) struct Operands<'a> {
    pub inputs: &'a [*const u8],
    pub outputs: &'a [*mut u8],
    pub scratch: *mut f32,
    pub scratch_len: usize,
    /// The packed input.
    pub packed: *mut f32,
    pub packed_len: usize,
}

impl<'a> Operands<'a> {
    /// # Safety
    /// Input `index` holds at least `len` elements of that type.
    pub(crate) unsafe fn input<T>(&self, index: usize, len: usize) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.inputs[index].cast(), len) }
    }

    /// # Safety
    /// Input `index` holds at least `len` elements.
    pub(crate) unsafe fn floats(&self, index: usize, len: usize) -> &'a [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.input(index, len) }
    }

    /// # Safety
    /// Input `index` holds at least `len` elements of that type.
    pub(crate) unsafe fn elements(&self, index: usize, dtype: DType, len: usize) -> TypedSlice<'a> {
        // SAFETY: the caller's promise.
        unsafe { TypedSlice::from_raw(self.inputs[index], dtype, len) }
    }

    /// The first output.
    ///
    /// # Safety
    /// It holds at least `len` elements of that type, and nothing else uses it meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the operands hold addresses; who calls answers for exclusive use")]
    pub(crate) unsafe fn output<T>(&self, len: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { self.output_at(0, len) }
    }

    /// # Safety
    /// Output `index` holds at least `len` elements of that type, and nothing else uses it meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the operands hold addresses; who calls answers for exclusive use")]
    pub(crate) unsafe fn output_at<T>(&self, index: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.outputs[index].cast(), len) }
    }

    /// # Safety
    /// Nothing else uses the scratch meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the operands hold addresses; who calls answers for exclusive use")]
    pub(crate) unsafe fn scratch(&self) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.scratch, self.scratch_len) }
    }

    /// # Safety
    /// Nothing else uses the packed input meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the operands hold addresses; who calls answers for exclusive use")]
    pub(crate) unsafe fn packed(&self) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.packed, self.packed_len) }
    }

    /// What a fused program reads and writes, behind the inputs of its producer.
    pub(crate) fn fusion_io(&self, producer_inputs: usize, producer: *const f32) -> FusionIo<'a> {
        FusionIo { producer, loads: &self.inputs[producer_inputs..], outputs: self.outputs }
    }
}
