//! Attention with operands of `bf16`, in vectors and in tiles: emulated on the portable instruction set, beside `f32` products of
//! the same numbers, and bit for bit what the instructions of this processor compute.

use super::{AttentionDesc, Dropout, Inputs, backward, forward};
use crate::gemm::{Ctx, Numbers, SharedMut};
use crate::isa::Isa;
use crate::peak::has_bf16;
use crate::simd::PanelFormat;
use crate::threads::ThreadPool;
use bessemer_ir::{DType, philox};
use half::bf16;

/// Output, log-sums and the gradients of queries, keys and values.
type Results = [Vec<f32>; 5];

/// Batch, heads, queries, keys and depth: odd ones, whole tiles, several blocks and chunks.
const SIZES: [[usize; 5]; 6] = [
    [1, 1, 1, 1, 2],
    [2, 3, 5, 7, 19],
    [1, 2, 64, 96, 64],
    [2, 1, 33, 31, 40],
    [1, 2, 131, 263, 24],
    [1, 1, 65, 530, 128],
];

fn normal(len: usize, stream: u32) -> Vec<f32> {
    (0..len).map(|i| philox::normal(5, 0, stream, i as u64)).collect()
}

fn desc([batch, heads, queries, keys, depth]: [usize; 5], has_dropout: bool, dtype: DType) -> AttentionDesc {
    let dropout = has_dropout.then_some(Dropout { rate: 0.25, gain: 4.0 / 3.0, seed: 9, stream: 2 });
    AttentionDesc { batch, heads, queries, keys, depth, scale: 1.0 / (depth as f32).sqrt(), dropout, dtype }
}

/// Both passes on numbers that `bf16` holds exactly, of which every fourth key is masked.
fn results(isa: Isa, format: PanelFormat, desc: &AttentionDesc, threads: usize) -> Results {
    let pool = ThreadPool::new(threads);
    let ctx = Ctx { isa, pool: &pool };
    let (q_len, k_len) = (desc.q_len(), desc.k_len());
    let tensors = [(q_len, 1), (k_len, 2), (k_len, 3)];
    let halves = tensors.map(|(len, stream)| normal(len, stream).into_iter().map(bf16::from_f32).collect::<Vec<_>>());
    let wide = halves.each_ref().map(|tensor| tensor.iter().map(|x| x.to_f32()).collect::<Vec<_>>());
    let numbers = |i: usize| match desc.dtype {
        DType::Bf16 => Numbers::from(halves[i].as_slice()),
        _ => Numbers::from(&wide[i]),
    };
    let bias: Vec<f32> =
        (0..desc.batch * desc.keys).map(|i| if i % desc.keys % 4 == 2 { -1e4 } else { (i % 5) as f32 / 5.0 }).collect();
    let [q, k, v] = [0, 1, 2].map(|i| numbers(i).checked(tensors[i].0, "operand"));
    let inputs = Inputs { q, k, v, bias: &bias, counter: 3 };
    let mut out = vec![f32::NAN; q_len];
    let mut log_sums = vec![f32::NAN; desc.rows_len()];
    let mut scratch = vec![f32::NAN; desc.forward_scratch_len(threads).max(desc.backward_scratch_len(threads))];
    let io =
        forward::Io { inputs: &inputs, out: SharedMut(out.as_mut_ptr()), log_sums: SharedMut(log_sums.as_mut_ptr()) };
    // SAFETY: all have the sizes of the description.
    unsafe { forward::run(ctx, desc, format, &io, &mut scratch) };
    scratch.fill(f32::NAN);
    let dout: Vec<f32> = normal(q_len, 4).into_iter().map(|x| bf16::from_f32(x).to_f32()).collect();
    let [mut dq, mut dk, mut dv] = [q_len, k_len, k_len].map(|len| vec![f32::NAN; len]);
    let io = backward::Io {
        inputs: &inputs,
        out: &out,
        log_sums: &log_sums,
        dout: &dout,
        dq: SharedMut(dq.as_mut_ptr()),
        dk: SharedMut(dk.as_mut_ptr()),
        dv: SharedMut(dv.as_mut_ptr()),
    };
    // SAFETY: as above.
    unsafe { backward::run(ctx, desc, format, &io, &mut scratch) };
    [out, log_sums, dq, dk, dv]
}

const NAMES: [&str; 5] = ["output", "log-sums", "gradient of queries", "gradient of keys", "gradient of values"];

/// Probabilities and gradients of scores are rounded to 8 bits: the distance to what is computed in `f32` is that of their
/// rounding errors.
#[test]
fn emulated_products_are_near_those_of_f32() {
    for size in SIZES {
        for has_dropout in [false, true] {
            let expected = results(Isa::Portable, PanelFormat::F32, &desc(size, has_dropout, DType::F32), 1);
            for format in [PanelFormat::Dot2, PanelFormat::Tiles] {
                let desc = desc(size, has_dropout, DType::Bf16);
                let actual = results(Isa::Portable, format, &desc, 1);
                for ((name, e), a) in NAMES.iter().zip(&expected).zip(&actual) {
                    let norm: f64 = e.iter().map(|&e| f64::from(e).powi(2)).sum();
                    let distance: f64 = e.iter().zip(a).map(|(&e, &a)| f64::from(e - a).powi(2)).sum();
                    let tolerance = if *name == "log-sums" { 1e-6 } else { 4e-3 };
                    // A single key has a probability of 1, and gradients of 0.
                    let error = (distance / norm.max(1e-6)).sqrt();
                    assert!(error <= tolerance, "{name}, {size:?}, dropout {has_dropout}, {format:?}: {error:.1e}");
                }
                assert!(actual == results(Isa::Portable, format, &desc, 3), "{size:?}, {format:?}: threads");
            }
        }
    }
}

/// Gradients of keys and values that are masked are exactly zero.
#[test]
fn masked_keys_have_no_gradient() {
    let size @ [_, _, _, keys, depth] = [1, 1, 40, 70, 32];
    for format in [PanelFormat::Dot2, PanelFormat::Tiles] {
        let [.., dk, dv] = results(Isa::Portable, format, &desc(size, false, DType::Bf16), 1);
        for key in 0..keys {
            let row = key * depth..(key + 1) * depth;
            let is_zero = dk[row.clone()].iter().chain(&dv[row]).all(|&x| x == 0.0);
            assert_eq!(is_zero, key % 4 == 2, "key {key}, {format:?}");
        }
    }
}

#[test]
fn instructions_compute_what_is_emulated() {
    let mut formats = vec![PanelFormat::Dot2, PanelFormat::Tiles];
    formats.truncate(match PanelFormat::of_bf16(Isa::Avx512) {
        PanelFormat::Tiles => 2,
        _ if has_bf16(Isa::Avx512) => 1,
        _ => 0,
    });
    if formats.is_empty() {
        println!("skipped: this processor has no products of bf16");
    }
    for format in formats {
        for (size, has_dropout) in SIZES.into_iter().flat_map(|size| [(size, false), (size, true)]) {
            let desc = desc(size, has_dropout, DType::Bf16);
            let expected = results(Isa::Portable, format, &desc, 2);
            let actual = results(Isa::Avx512, format, &desc, 2);
            for ((name, e), a) in NAMES.iter().zip(&expected).zip(&actual) {
                let differ = e.iter().zip(a).filter(|(e, a)| e != a).count();
                assert_eq!(differ, 0, "of {} elements of {name}, {size:?}, dropout {has_dropout}, {format:?}", e.len());
            }
        }
    }
}
