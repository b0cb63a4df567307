//! Tiles of Intel AMX: permission to use them, their configuration, and the product of blocks of `bf16` pairs.

use super::{Avx512, Avx512Bf16, Simd, SimdOp, TILE_STEPS, TileProduct};
use std::arch::asm;
use std::arch::x86_64::__m512;
use std::sync::OnceLock;

/// [`Avx512Bf16`] with products of whole tiles.
#[derive(Clone, Copy)]
pub(crate) struct Amx;

/// Configuration of the eight tiles: palette 1, 16 rows of 64 bytes each (Intel SDM, volume 1, section 18.2).
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static WHOLE_TILES: TileConfig = TileConfig {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Whether the processor has tiles of `bf16`, and the system lets this process use them. Asks for it at the first call.
pub(super) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_instructions() && is_permitted())
}

fn has_instructions() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    /// `AMX-BF16` and `AMX-TILE` in EDX of leaf 7, subleaf 0.
    const FEATURES: u32 = 1 << 22 | 1 << 24;
    is_x86_feature_detected!("avx512bf16")
        && __cpuid(0).eax >= 0x1d
        && __cpuid_count(7, 0).edx & FEATURES == FEATURES
        && __cpuid_count(0x1d, 0).eax >= 1
}

/// Asks the kernel for the state of tile data, which it keeps only for processes that want it.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call changes what state the kernel keeps of this process, nothing else.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Bytes from one step to the next in a panel of B.
const B_STRIDE: usize = Avx512::LANES * Avx512::TILE_VECTORS * size_of::<f32>();

impl Amx {
    /// Runs `op` with whole tiles, which nothing else in this process uses.
    ///
    /// # Safety
    /// The machine has tiles, and the conditions of `op` hold.
    pub(crate) unsafe fn run_configured<Op: SimdOp>(op: Op) -> Op::Output {
        // SAFETY: the caller's promises.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE_TILES, options(nostack, readonly, preserves_flags));
            let output = Amx::run_op(op);
            asm!("tilerelease", options(nostack, nomem, preserves_flags));
            output
        }
    }
}

impl Simd for Amx {
    const DOT2: bool = true;
    const TILES: bool = true;
    same_as!(Avx512Bf16);

    compiled_with!("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma");

    #[inline(always)]
    unsafe fn multiply(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller's promise of this trait.
        unsafe { Avx512Bf16::multiply(a, b, c) }
    }
    #[inline(always)]
    unsafe fn round_bf16(v: __m512) -> __m512 {
        // SAFETY: the caller's promise of this trait.
        unsafe { Avx512Bf16::round_bf16(v) }
    }
    #[inline(always)]
    unsafe fn store_bf16(dst: *mut u16, low: __m512, high: __m512) {
        // SAFETY: the caller's promise of this trait.
        unsafe { Avx512Bf16::store_bf16(dst, low, high) }
    }
    #[inline(always)]
    unsafe fn tile_product(t: &TileProduct) {
        // SAFETY: the caller's promise of this trait.
        unsafe {
            match (t.row_tiles, t.col_tiles) {
                (2, 2) => product_2x2(t),
                (2, _) => product_2x1(t),
                (_, 2) => product_1x2(t),
                _ => product_1x1(t),
            }
        }
    }
}

/// One of the four products of blocks: `$zero`, `$load` and `$store` treat the tiles of C, `$body` adds the products of one step of
/// 16 pairs, of which `{a}` is the place in A, and before and behind them that of the lower tiles of C. Each step prefetches some
/// pieces of two cache lines.
macro_rules! block_product {
    ($name:ident, [$($zero:literal)*], [$($load:literal)*], [$($body:literal)*], [$($store:literal)*]) => {
        /// # Safety
        /// The operands are valid, and the tiles are configured.
        #[inline(always)]
        unsafe fn $name(t: &TileProduct) {
            let c_stride = 4 * t.c_stride;
            // SAFETY: the caller's promise; no tile is used outside this block.
            unsafe {
                asm!(
                    "test {n}, {n}",
                    "jnz 2f",
                    $(concat!("tilezero ", $zero),)*
                    "jmp 5f",
                    "2:",
                    "lea {a}, [{c} + 8 * {c_stride}]",
                    "lea {a}, [{a} + 8 * {c_stride}]",
                    $(concat!("tileloadd ", $load),)*
                    "5:",
                    "test {steps}, {steps}",
                    "jz 6f",
                    "3:",
                    "mov {a}, [{offsets}]",
                    "add {offsets}, 8",
                    "add {a}, {a_start}",
                    "mov {n}, {pieces}",
                    "4:",
                    "prefetcht1 [{next}]",
                    "prefetcht1 [{next} + 64]",
                    "add {next}, {pitch}",
                    "dec {n}",
                    "jnz 4b",
                    $($body,)*
                    "add {b}, {b_step}",
                    "dec {steps}",
                    "jnz 3b",
                    "6:",
                    "lea {a}, [{c} + 8 * {c_stride}]",
                    "lea {a}, [{a} + 8 * {c_stride}]",
                    $(concat!("tilestored ", $store),)*
                    n = inout(reg) usize::from(t.accumulate) => _,
                    pieces = in(reg) t.prefetch_pieces,
                    steps = inout(reg) t.depth / TILE_STEPS => _,
                    a = out(reg) _,
                    a_start = in(reg) t.a,
                    a_stride = in(reg) 4 * t.a_stride,
                    offsets = inout(reg) t.a_offsets => _,
                    b = inout(reg) t.b => _,
                    b_stride = in(reg) B_STRIDE,
                    b_step = const TILE_STEPS * B_STRIDE,
                    c = in(reg) t.c,
                    c_stride = in(reg) c_stride,
                    next = inout(reg) t.prefetch => _,
                    pitch = in(reg) 4 * t.prefetch_pitch,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

block_product!(
    product_2x2,
    ["tmm0" "tmm1" "tmm2" "tmm3"],
    [
        "tmm0, [{c} + {c_stride}]" "tmm1, [{c} + {c_stride} + 64]"
        "tmm2, [{a} + {c_stride}]" "tmm3, [{a} + {c_stride} + 64]"
    ],
    [
        "tileloadd tmm4, [{a} + {a_stride}]"
        "lea {a}, [{a} + 8 * {a_stride}]"
        "tileloadd tmm6, [{b} + {b_stride}]"
        "lea {a}, [{a} + 8 * {a_stride}]"
        "tileloadd tmm7, [{b} + {b_stride} + 64]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tileloadd tmm5, [{a} + {a_stride}]"
        "tdpbf16ps tmm1, tmm4, tmm7"
        "tdpbf16ps tmm2, tmm5, tmm6"
        "tdpbf16ps tmm3, tmm5, tmm7"
    ],
    [
        "[{c} + {c_stride}], tmm0" "[{c} + {c_stride} + 64], tmm1"
        "[{a} + {c_stride}], tmm2" "[{a} + {c_stride} + 64], tmm3"
    ]
);

block_product!(
    product_1x2,
    ["tmm0" "tmm1"],
    ["tmm0, [{c} + {c_stride}]" "tmm1, [{c} + {c_stride} + 64]"],
    [
        "tileloadd tmm4, [{a} + {a_stride}]"
        "tileloadd tmm6, [{b} + {b_stride}]"
        "tileloadd tmm7, [{b} + {b_stride} + 64]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tdpbf16ps tmm1, tmm4, tmm7"
    ],
    ["[{c} + {c_stride}], tmm0" "[{c} + {c_stride} + 64], tmm1"]
);

block_product!(
    product_2x1,
    ["tmm0" "tmm2"],
    ["tmm0, [{c} + {c_stride}]" "tmm2, [{a} + {c_stride}]"],
    [
        "tileloadd tmm4, [{a} + {a_stride}]"
        "lea {a}, [{a} + 8 * {a_stride}]"
        "tileloadd tmm6, [{b} + {b_stride}]"
        "lea {a}, [{a} + 8 * {a_stride}]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tileloadd tmm5, [{a} + {a_stride}]"
        "tdpbf16ps tmm2, tmm5, tmm6"
    ],
    ["[{c} + {c_stride}], tmm0" "[{a} + {c_stride}], tmm2"]
);

block_product!(
    product_1x1,
    ["tmm0"],
    ["tmm0, [{c} + {c_stride}]"],
    [
        "tileloadd tmm4, [{a} + {a_stride}]"
        "tileloadd tmm6, [{b} + {b_stride}]"
        "tdpbf16ps tmm0, tmm4, tmm6"
    ],
    ["[{c} + {c_stride}], tmm0"]
);
