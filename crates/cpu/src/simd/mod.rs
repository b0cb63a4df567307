//! Vectors of `f32` as each instruction set has them, and the one place where code is compiled per instruction set.

use crate::isa::Isa;
use crate::peak::has_bf16;

/// Methods of [`Simd`] that are one call each: `name: function;`, with the arguments of the trait's method in its order.
macro_rules! calls {
    ($($method:ident: $function:expr;)*) => { $(calls!(@method $method $function);)* };
    (@method splat $function:expr) => { calls!(@define splat(x: f32) -> Self::V, $function); };
    (@method load $function:expr) => { calls!(@define load(src: *const f32) -> Self::V, $function); };
    (@method store $function:expr) => { calls!(@define store(dst: *mut f32, v: Self::V), $function); };
    (@method mul_add $function:expr) => {
        calls!(@define mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V, $function);
    };
    (@method fused $function:expr) => {
        calls!(@define fused(a: Self::V, b: Self::V, c: Self::V) -> Self::V, $function);
    };
    (@method copy $function:expr) => { calls!(@define copy(src: *const f32, dst: *mut f32, len: usize), $function); };
    (@method copy_16 $function:expr) => {
        calls!(@define copy_16(src: *const u16, dst: *mut u16, len: usize), $function);
    };
    (@method interleave_16 $function:expr) => {
        calls!(@define interleave_16(even: *const u16, odd: *const u16, dst: *mut u32, len: usize), $function);
    };
    (@method transpose $function:expr) => {
        calls!(@define transpose(src: *const f32, stride: usize, dst: *mut f32, dst_stride: usize), $function);
    };
    (@method prefetch $function:expr) => { calls!(@define prefetch(src: *const f32), $function); };
    (@method prefetch_write $function:expr) => { calls!(@define prefetch_write(dst: *mut f32), $function); };
    (@method sqrt $function:expr) => { calls!(@define sqrt(a: Self::V) -> Self::V, $function); };
    (@method neg $function:expr) => { calls!(@define neg(a: Self::V) -> Self::V, $function); };
    (@method abs $function:expr) => { calls!(@define abs(a: Self::V) -> Self::V, $function); };
    (@method test $function:expr) => {
        calls!(@define test(test: $crate::simd::Test, a: Self::V, b: Self::V) -> Self::Mask, $function);
    };
    (@method blend $function:expr) => {
        calls!(@define blend(mask: Self::Mask, a: Self::V, b: Self::V) -> Self::V, $function);
    };
    (@method load_bf16 $function:expr) => { calls!(@define load_bf16(src: *const u16) -> Self::V, $function); };
    (@method store_truncated $function:expr) => {
        calls!(@define store_truncated(dst: *mut u16, low: Self::V, high: Self::V), $function);
    };
    // `add`, `sub`, `mul`, `div`, `max` and `scaled`.
    (@method $binary:ident $function:expr) => { calls!(@define $binary(a: Self::V, b: Self::V) -> Self::V, $function); };
    (@define $method:ident($($argument:ident: $ty:ty),*) $(-> $result:ty)?, $function:expr) => {
        #[inline(always)]
        unsafe fn $method($($argument: $ty),*) $(-> $result)? {
            // SAFETY: the caller's promise of this trait.
            unsafe { $function($($argument),*) }
        }
    };
}

/// The method of [`Simd`] by which code is compiled with the instruction set that the features make.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! compiled_with {
    ($features:literal) => {
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn run_op<Op: SimdOp>(op: Op) -> Op::Output {
            // SAFETY: the caller's promise of this trait.
            unsafe { op.run::<Self>() }
        }
    };
}

/// The methods of [`Simd`] that an instruction set has from another one with the same vectors.
#[cfg(any(test, target_arch = "x86_64"))]
macro_rules! same_as {
    ($base:ty) => {
        same_as!($base, <$base as Simd>::TILE_VECTORS);
    };
    ($base:ty, $tile_vectors:expr) => {
        type V = <$base as Simd>::V;
        type Mask = <$base as Simd>::Mask;
        const LANES: usize = <$base as Simd>::LANES;
        const TILE_ROWS: usize = <$base as Simd>::TILE_ROWS;
        const TILE_VECTORS: usize = $tile_vectors;
        const BLOCK_VECTORS: usize = <$base as Simd>::BLOCK_VECTORS;

        calls! {
            splat: <$base>::splat;
            load: <$base>::load;
            store: <$base>::store;
            add: <$base>::add;
            sub: <$base>::sub;
            mul: <$base>::mul;
            max: <$base>::max;
            mul_add: <$base>::mul_add;
            fused: <$base>::fused;
            scaled: <$base>::scaled;
            copy: <$base>::copy;
            copy_16: <$base>::copy_16;
            interleave_16: <$base>::interleave_16;
            transpose: <$base>::transpose;
            prefetch: <$base>::prefetch;
            prefetch_write: <$base>::prefetch_write;
            div: <$base>::div;
            sqrt: <$base>::sqrt;
            neg: <$base>::neg;
            abs: <$base>::abs;
            test: <$base>::test;
            blend: <$base>::blend;
            load_bf16: <$base>::load_bf16;
            store_truncated: <$base>::store_truncated;
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "aarch64")]
mod arm;
#[cfg(test)]
pub(crate) mod emulated;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(crate) use amx::Amx;
#[cfg(target_arch = "aarch64")]
pub(crate) use arm::Neon;
pub(crate) use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512, Avx512Bf16};

/// Vector operations of one instruction set, and the register tile that suits it.
///
/// Every function must be called, and inlined, under [`Simd::run_op`] of the same type.
///
/// # Safety
/// All functions: the machine has the instruction set. Those with pointers: the pointers are valid for the
/// elements they touch; no alignment is needed.
#[allow(clippy::missing_safety_doc)]
pub(crate) trait Simd: Copy + 'static {
    /// A vector register.
    type V: Copy;
    /// Elements of a vector.
    const LANES: usize;
    /// Whether operands of products are pairs of `bf16` elements, two steps of the reduction in 32 bits.
    const DOT2: bool = false;
    /// Whether products are computed by [`tile_product`](Self::tile_product); implies [`DOT2`](Self::DOT2).
    const TILES: bool = false;
    /// Rows of the matmul register tile.
    const TILE_ROWS: usize;
    /// Vectors in a row of the matmul register tile.
    const TILE_VECTORS: usize;
    /// Vectors of a block of a fusion, an even number: as many as half of the registers hold.
    const BLOCK_VECTORS: usize;

    /// Runs `op` compiled with the instruction set. All that it calls must be inlined; closures are not, beyond some size.
    unsafe fn run_op<Op: SimdOp>(op: Op) -> Op::Output;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(src: *const f32) -> Self::V;
    unsafe fn store(dst: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a` where it is greater, else `b`.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`; fused where the instruction set has it.
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a * b + c`, rounded once, on every instruction set.
    #[inline(always)]
    unsafe fn fused(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the caller's promise of this trait.
        unsafe { Self::mul_add(a, b, c) }
    }
    /// `a * 2^n` for the integer `n` in the lowest bits of `exponent`. The results must be normal numbers.
    unsafe fn scaled(a: Self::V, exponent: Self::V) -> Self::V;
    /// What a step of a product adds: `a * b + c`, or for [`DOT2`](Self::DOT2) `c` plus the products of both.
    #[inline(always)]
    unsafe fn multiply(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the caller's promise of this trait.
        unsafe { Self::mul_add(a, b, c) }
    }
    /// Computes a block of C, where there are [`TILES`](Self::TILES), which are configured.
    #[inline(always)]
    unsafe fn tile_product(_: &TileProduct) {
        unreachable!("only instruction sets with tiles multiply them")
    }
    /// Copies `len` elements between memory that does not overlap.
    #[inline(always)]
    unsafe fn copy(src: *const f32, dst: *mut f32, len: usize) {
        // SAFETY: the caller's promise of this trait.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
    }
    /// Copies `len` elements of 16 bits between memory that does not overlap.
    #[inline(always)]
    unsafe fn copy_16(src: *const u16, dst: *mut u16, len: usize) {
        // SAFETY: the caller's promise of this trait.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
    }
    /// Interleaves two rows of `len` elements of 16 bits: `dst[i]` has `even[i]` in its low and `odd[i]` in its high half.
    #[inline(always)]
    unsafe fn interleave_16(even: *const u16, odd: *const u16, dst: *mut u32, len: usize) {
        for i in 0..len {
            // SAFETY: the caller's promise of this trait.
            unsafe { *dst.add(i) = u32::from(*even.add(i)) | u32::from(*odd.add(i)) << 16 };
        }
    }
    /// Transposes a square of [`LANES`](Self::LANES) rows: `dst[j][i] = src[i][j]`, with distances of rows.
    #[inline(always)]
    unsafe fn transpose(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
        for i in 0..Self::LANES {
            for j in 0..Self::LANES {
                // SAFETY: the caller's promise of this trait.
                unsafe { *dst.add(j * dst_stride + i) = *src.add(i * src_stride + j) };
            }
        }
    }
    /// Hints that the cache line at the address, which may be any address, is wanted in the second-level cache.
    #[inline(always)]
    unsafe fn prefetch(_src: *const f32) {}
    /// Hints that the cache line at the address, which may be any address, will be written soon.
    #[inline(always)]
    unsafe fn prefetch_write(_dst: *mut f32) {}

    /// A truth value for each lane.
    type Mask: Copy;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sqrt(a: Self::V) -> Self::V;
    unsafe fn neg(a: Self::V) -> Self::V;
    unsafe fn abs(a: Self::V) -> Self::V;
    /// Where `a` and `b` compare so.
    unsafe fn test(test: Test, a: Self::V, b: Self::V) -> Self::Mask;
    /// `a` where the mask is true, else `b`.
    unsafe fn blend(mask: Self::Mask, a: Self::V, b: Self::V) -> Self::V;
    /// The greater number. Of equal ones `a`, of a number and a NaN the number.
    #[inline(always)]
    unsafe fn max_number(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the caller's promise of this trait.
        unsafe { Self::blend(Self::test(Test::Ne, a, a), b, Self::max(b, a)) }
    }
    /// The lesser number. Of equal ones `a`, of a number and a NaN the number.
    #[inline(always)]
    unsafe fn min_number(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the caller's promise of this trait.
        unsafe {
            let least = Self::blend(Self::test(Test::Lt, b, a), b, a);
            Self::blend(Self::test(Test::Ne, a, a), b, least)
        }
    }
    /// Loads `bf16` elements.
    #[inline(always)]
    unsafe fn load_bf16(src: *const u16) -> Self::V {
        let mut lanes = [0.0f32; MOST_LANES];
        // SAFETY: the caller's promise of this trait; the array is as long as any vector.
        unsafe {
            for (i, lane) in lanes[..Self::LANES].iter_mut().enumerate() {
                *lane = f32::from_bits(u32::from(src.add(i).read_unaligned()) << 16);
            }
            Self::load(lanes.as_ptr())
        }
    }
    /// The nearest `bf16` elements, ties to even; a NaN stays one. Subnormal ones may become zero.
    #[inline(always)]
    unsafe fn round_bf16(v: Self::V) -> Self::V {
        let mut lanes = [0.0f32; MOST_LANES];
        // SAFETY: the caller's promise of this trait; the array is as long as any vector.
        unsafe {
            Self::store(lanes.as_mut_ptr(), v);
            for lane in &mut lanes[..Self::LANES] {
                let bits = lane.to_bits();
                let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
                *lane = f32::from_bits((if lane.is_nan() { bits | 0x40_0000 } else { rounded }) & 0xFFFF_0000);
            }
            Self::load(lanes.as_ptr())
        }
    }
    /// Stores two vectors one behind the other, rounded as [`round_bf16`](Self::round_bf16) does.
    #[inline(always)]
    unsafe fn store_bf16(dst: *mut u16, low: Self::V, high: Self::V) {
        // SAFETY: the caller's promise of this trait.
        unsafe { Self::store_truncated(dst, Self::round_bf16(low), Self::round_bf16(high)) }
    }
    /// Stores two vectors, one behind the other, of elements that are `bf16` already.
    #[inline(always)]
    unsafe fn store_truncated(dst: *mut u16, low: Self::V, high: Self::V) {
        let mut lanes = [0.0f32; 2 * MOST_LANES];
        // SAFETY: the caller's promise of this trait; the array is as long as any two vectors.
        unsafe {
            Self::store(lanes.as_mut_ptr(), low);
            Self::store(lanes.as_mut_ptr().add(Self::LANES), high);
            for (i, lane) in lanes[..2 * Self::LANES].iter().enumerate() {
                dst.add(i).write_unaligned((lane.to_bits() >> 16) as u16);
            }
        }
    }
}

/// Lanes of the longest vectors.
pub(crate) const MOST_LANES: usize = 16;

/// How two elements are compared. With a NaN only `Ne` is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Eq,
    Ne,
    Lt,
    Le,
}

/// A computation written once for all instruction sets.
pub(crate) trait SimdOp: Sized {
    /// What it returns.
    type Output;
    /// The computation; implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// Called under `S::run_op` on a machine that has `S`; otherwise as the implementation says.
    unsafe fn run<S: Simd>(self) -> Self::Output;

    /// Runs it compiled for `isa`. A method, as the compiler puts functions of a type into the part of its program in which the type is,
    /// and works on parts at once.
    ///
    /// # Safety
    /// The conditions of the computation hold.
    ///
    /// # Panics
    /// When this machine lacks `isa`.
    unsafe fn run_on(self, isa: Isa) -> Self::Output {
        assert!(isa.is_available(), "instruction set {isa} is not available on this machine");
        // SAFETY: availability was checked, the rest is promised by the caller.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => Avx512::run_op(self),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => Avx2::run_op(self),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => Neon::run_op(self),
                _ => Portable::run_op(self),
            }
        }
    }

    /// Runs a product compiled for `isa` on operands of a format that [`PanelFormat::of_bf16`] gave, or `f32`.
    ///
    /// # Safety
    /// The conditions of the computation hold.
    ///
    /// # Panics
    /// When this machine lacks `isa`, or `isa` the format.
    unsafe fn run_product_on(self, isa: Isa, format: PanelFormat) -> Self::Output {
        if format == PanelFormat::F32 {
            // SAFETY: the caller's promise.
            return unsafe { self.run_on(isa) };
        }
        assert!(isa.is_available(), "instruction set {isa} is not available on this machine");
        match (isa, format) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, PanelFormat::Tiles) => {
                assert!(amx::is_available(), "this machine has no tiles of bf16");
                // SAFETY: availability was checked, the rest is promised by the caller.
                unsafe { Amx::run_configured(self) }
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, PanelFormat::Dot2) => {
                assert!(has_bf16(isa), "this machine has no dot products of bf16");
                // SAFETY: availability was checked, the rest is promised by the caller.
                unsafe { Avx512Bf16::run_op(self) }
            }
            // SAFETY: the caller's promise.
            #[cfg(test)]
            (Isa::Portable, PanelFormat::Dot2) => unsafe { emulated::Dot2::run_op(self) },
            // SAFETY: the caller's promise.
            #[cfg(test)]
            (Isa::Portable, PanelFormat::Tiles) => unsafe { emulated::Tiles::run_op(self) },
            _ => unreachable!("{isa} does not multiply {format:?}"),
        }
    }

    /// Runs it compiled for `isa`, with instructions that round to `bf16` where the processor has them.
    ///
    /// # Safety
    /// The conditions of the computation hold.
    ///
    /// # Panics
    /// When this machine lacks `isa`.
    unsafe fn run_bf16_on(self, isa: Isa) -> Self::Output {
        match isa {
            // SAFETY: availability was checked, the rest is promised by the caller.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if isa.is_available() && has_bf16(isa) => unsafe { Avx512Bf16::run_op(self) },
            // SAFETY: the caller's promise.
            _ => unsafe { self.run_on(isa) },
        }
    }
}

/// Steps of the reduction (pairs of `bf16`) in a tile, rows of a tile, and columns of a tile of C.
pub(crate) const TILE_STEPS: usize = 16;

/// Offsets of steps in A, as [`TileProduct`] takes them, that are neighbours in its rows: of as many as a product has at most.
pub(crate) static NEIGHBOURS: [usize; 16] = {
    let mut offsets = [0; 16];
    let mut step = 0;
    while step < offsets.len() {
        offsets[step] = step * TILE_STEPS * size_of::<f32>();
        step += 1;
    }
    offsets
};

/// Operands of [`Simd::tile_product`]: `C (+)= A * B` for one or two tiles of rows and of columns. Strides are in elements of 32 bits.
pub(crate) struct TileProduct {
    /// 1 or 2, each of [`TILE_STEPS`] rows or columns.
    pub(crate) row_tiles: usize,
    pub(crate) col_tiles: usize,
    /// A multiple of [`TILE_STEPS`], not zero.
    pub(crate) depth: usize,
    /// Pairs `[rows, depth]`, of which the rows lie at equal distances.
    pub(crate) a: *const f32,
    pub(crate) a_stride: usize,
    /// Bytes from `a` to each [`TILE_STEPS`] steps.
    pub(crate) a_offsets: *const usize,
    /// Pairs `[depth, 32]`: a panel.
    pub(crate) b: *const f32,
    pub(crate) c: *mut f32,
    pub(crate) c_stride: usize,
    /// Add to C instead of replacing it.
    pub(crate) accumulate: bool,
    /// Memory that will be wanted soon: each [`TILE_STEPS`] steps prefetch some pieces of two cache lines.
    pub(crate) prefetch: *const f32,
    /// Distance of the pieces.
    pub(crate) prefetch_pitch: usize,
    /// Pieces of [`TILE_STEPS`] steps, at least 1.
    pub(crate) prefetch_pieces: usize,
}

/// How packed operands of a product lie in memory, and with which instructions they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PanelFormat {
    /// A step of the reduction is an `f32`.
    F32,
    /// A step is a pair of `bf16` elements in 32 bits, multiplied by dot products of vectors.
    Dot2,
    /// As `Dot2`, multiplied by tiles; steps are padded with zeros to a multiple of [`TILE_STEPS`].
    Tiles,
}

impl PanelFormat {
    /// The fastest format of products of `bf16` elements.
    pub(crate) fn of_bf16(isa: Isa) -> PanelFormat {
        #[cfg(test)]
        if isa == Isa::Portable {
            return emulated::format();
        }
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if amx::is_available() => PanelFormat::Tiles,
            _ if has_bf16(isa) => PanelFormat::Dot2,
            _ => PanelFormat::F32,
        }
    }

    /// Whether some instruction set of this machine has [`Tiles`](Self::Tiles).
    pub(crate) fn has_tiles() -> bool {
        #[cfg(target_arch = "x86_64")]
        let has_tiles = amx::is_available();
        #[cfg(not(target_arch = "x86_64"))]
        let has_tiles = false;
        cfg!(test) || has_tiles
    }

    /// The format that an instruction set multiplies.
    #[inline(always)]
    pub(crate) const fn of<S: Simd>() -> PanelFormat {
        match (S::TILES, S::DOT2) {
            (true, _) => PanelFormat::Tiles,
            (false, true) => PanelFormat::Dot2,
            (false, false) => PanelFormat::F32,
        }
    }

    /// Steps of a reduction over `k` elements.
    #[inline(always)]
    pub(crate) fn steps(self, k: usize) -> usize {
        match self {
            PanelFormat::F32 => k,
            PanelFormat::Dot2 => k.div_ceil(2),
            PanelFormat::Tiles => k.div_ceil(2 * TILE_STEPS) * TILE_STEPS,
        }
    }

    /// Whether steps are pairs of elements.
    pub(crate) fn is_dot2(self) -> bool {
        self != PanelFormat::F32
    }
}
