//! Attention with operands of `bf16`, in vectors and in tiles: emulated on the portable instruction set, beside the reference
//! kernels, and bit for bit what the instructions of this processor compute.

use super::{AttentionDesc, Dropout, Inputs, backward, forward};
use crate::gemm::{Ctx, SharedMut, TypedSlice};
use crate::isa::Isa;
use crate::peak::has_bf16;
use crate::simd::PanelFormat;
use crate::threads::ThreadPool;
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::attention::{Attention, AttentionDropout, AttentionGrad};
use bessemer_ir::reference::Interpreter;
use bessemer_ir::{DType, Graph, Role, TensorType, philox};
use half::bf16;
use std::io::Write;

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

/// Elements that `bf16` holds exactly.
fn halves(len: usize, stream: u32) -> Vec<bf16> {
    (0..len).map(|i| bf16::from_f32(philox::normal(5, 0, stream, i as u64))).collect()
}

fn widened(elements: &[bf16]) -> Vec<f32> {
    elements.iter().map(|x| x.to_f32()).collect()
}

/// Every fourth key is masked.
fn bias(desc: &AttentionDesc) -> Vec<f32> {
    let bias = |key: usize| if key % 4 == 2 { -1e4 } else { (key % 5) as f32 / 5.0 };
    (0..desc.batch * desc.keys).map(|i| bias(i % desc.keys)).collect()
}

/// Streams of queries, keys, values and the gradient of the output.
const STREAMS: [u32; 4] = [1, 2, 3, 4];
const COUNTER: u32 = 3;
const DROPOUT: Dropout = Dropout { rate: 0.25, gain: 4.0 / 3.0, seed: 9, stream: 2 };

fn desc([batch, heads, queries, keys, depth]: [usize; 5], has_dropout: bool, dtype: DType) -> AttentionDesc {
    let scale = 1.0 / (depth as f32).sqrt();
    AttentionDesc { batch, heads, queries, keys, depth, scale, dropout: has_dropout.then_some(DROPOUT), dtype }
}

/// What the reference kernels compute.
fn reference(desc: &AttentionDesc) -> [Vec<f64>; 5] {
    let rows = |rows: usize| TensorType::f32([desc.batch, rows, desc.width()]);
    let dropout = desc.dropout.map(|d| AttentionDropout {
        rate: Scalar(d.rate.into()),
        seed: d.seed,
        stream: d.stream,
        keeps_mask: false,
    });
    let attention = Attention { heads: desc.heads, scale: Scalar(desc.scale.into()), dropout, output: DType::F32 };
    let types = [
        rows(desc.queries),
        rows(desc.keys),
        rows(desc.keys),
        rows(desc.queries),
        TensorType::f32([desc.batch, desc.keys]),
        TensorType::new(DType::I32, []),
    ];
    let mut graph = Graph::new();
    let mut input = |i: usize| graph.input(&format!("x{i}"), Role::Feed, types[i].clone()).unwrap();
    let [q, k, v, dout, bias_input, counter] = std::array::from_fn(&mut input);
    let counter = if desc.dropout.is_some() { vec![counter] } else { Vec::new() };
    let common = [q, k, v, bias_input];
    let forward = graph.push(attention, &[&common[..], &counter].concat()).unwrap();
    let inputs = [&common[..], &forward, &[dout], &counter].concat();
    let backward = graph.push(AttentionGrad { attention }, &inputs).unwrap();
    for (name, value) in NAMES.iter().zip([forward, backward].concat()) {
        graph.output(name, value);
    }
    let mut interpreter = Interpreter::new(&graph);
    for (i, stream) in STREAMS.into_iter().enumerate() {
        let elements = halves(types[i].shape.elements(), stream);
        interpreter.set(&format!("x{i}"), &elements.iter().map(|x| x.to_f64()).collect::<Vec<_>>());
    }
    interpreter.set("x4", &bias(desc).into_iter().map(f64::from).collect::<Vec<_>>());
    interpreter.set("x5", &[f64::from(COUNTER)]);
    interpreter.run();
    NAMES.map(|name| interpreter.output(name).data.clone())
}

/// Both passes.
fn results(isa: Isa, format: PanelFormat, desc: &AttentionDesc, threads: usize) -> Results {
    let pool = ThreadPool::new(threads);
    let ctx = Ctx::alone(isa, &pool);
    let (q_len, k_len) = (desc.q_len(), desc.k_len());
    let [q, k, v, dout] = std::array::from_fn(|i| halves(if i % 3 == 0 { q_len } else { k_len }, STREAMS[i]));
    let wide = [&q, &k, &v].map(|tensor| widened(tensor));
    let elements = |i: usize, tensor: &'static str| match desc.dtype {
        DType::Bf16 => TypedSlice::from([&q, &k, &v][i].as_slice()).checked(wide[i].len(), tensor),
        _ => TypedSlice::from(&wide[i]).checked(wide[i].len(), tensor),
    };
    let bias = bias(desc);
    let inputs = Inputs {
        q: elements(0, "queries"),
        k: elements(1, "keys"),
        v: elements(2, "values"),
        bias: &bias,
        counter: COUNTER,
    };
    let mut out = vec![f32::NAN; q_len];
    let mut log_sums = vec![f32::NAN; desc.rows_len()];
    let mut scratch = vec![f32::NAN; desc.forward_scratch_len(threads).max(desc.backward_scratch_len(threads))];
    let io =
        forward::Io { inputs: &inputs, out: SharedMut(out.as_mut_ptr()), log_sums: SharedMut(log_sums.as_mut_ptr()) };
    // SAFETY: all have the sizes of the description.
    unsafe { forward::run(ctx, desc, format, &io, &mut scratch) };
    scratch.fill(f32::NAN);
    let dout = widened(&dout);
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

/// Relative L2 errors.
fn errors(expected: &[Vec<f64>; 5], actual: &Results) -> [f64; 5] {
    std::array::from_fn(|i| {
        let norm: f64 = expected[i].iter().map(|e| e * e).sum();
        let distance: f64 = expected[i].iter().zip(&actual[i]).map(|(e, &a)| (e - f64::from(a)).powi(2)).sum();
        // A single key has a probability of 1, and gradients of 0.
        (distance / norm.max(1e-6)).sqrt()
    })
}

/// Probabilities and gradients of scores are rounded to 8 bits: the distance to the reference is that of their rounding errors.
/// The same elements multiplied as `f32` keep the tolerance of `f32`.
#[test]
fn both_passes_are_near_the_reference() {
    for (size, has_dropout) in SIZES.into_iter().flat_map(|size| [(size, false), (size, true)]) {
        let bf16 = desc(size, has_dropout, DType::Bf16);
        let expected = reference(&bf16);
        let cases = [
            (desc(size, has_dropout, DType::F32), PanelFormat::F32, 2e-6),
            (bf16, PanelFormat::F32, 2e-6),
            (bf16, PanelFormat::Dot2, 4e-3),
            (bf16, PanelFormat::Tiles, 4e-3),
        ];
        for (desc, format, tolerance) in cases {
            let what = format!("{size:?}, dropout {has_dropout}, {} in {format:?}", desc.dtype);
            let actual = results(Isa::Portable, format, &desc, 1);
            for (name, error) in NAMES.iter().zip(errors(&expected, &actual)) {
                let tolerance = if *name == "log-sums" { 1e-6 } else { tolerance };
                assert!(error <= tolerance, "{name}, {what}: {error:.1e}");
            }
            assert!(actual == results(Isa::Portable, format, &desc, 3), "{what}: depends on the number of threads");
        }
    }
}

#[test]
#[ignore = "prints a table"]
fn errors_by_format() {
    println!("| queries, keys | dropout | products | {} |", NAMES.join(" | "));
    for (length, has_dropout) in [(128, false), (128, true), (512, false)] {
        let desc = desc([1, 2, length, length, 64], has_dropout, DType::Bf16);
        let expected = reference(&desc);
        for format in [PanelFormat::F32, PanelFormat::Dot2, PanelFormat::Tiles] {
            let errors =
                errors(&expected, &results(Isa::Portable, format, &desc, 2)).map(|error| format!("{error:.1e}"));
            println!("| {length} | {has_dropout} | {format:?} | {} |", errors.join(" | "));
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
        std::io::stderr().write_all(b"skipped: this processor has no products of bf16\n").unwrap();
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
