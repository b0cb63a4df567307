//! Times of fusions as training and inference have them, on one thread and on all.
//!
//!     cargo run --release -p bessemer-cpu --example fusion_bench [ISA] [FILTER]

use bessemer_cpu::fusion::{FusionIo, FusionKernel};
use bessemer_cpu::gemm::Ctx;
use bessemer_cpu::isa::Isa;
use bessemer_cpu::threads::ThreadPool;
use bessemer_cpu::vector;
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::{DType, TensorType};
use std::time::Instant;

/// A fusion in the notation of `bessemer explain`: loads as `full`, `col` or `one` with their types, instructions, outputs.
struct Case {
    name: &'static str,
    rows: usize,
    cols: usize,
    loads: &'static str,
    program: &'static str,
    outputs: &'static str,
}

const LAYER_NORM: &str = "in0; row_sum r0; 0.0013020833333333333; mul r1 r2; sub r0 r3; square r4; row_sum r5; mul r6 r2; 0.000000000001; \
     add r7 r8; rsqrt r9; mul r4 r10; in1; mul r11 r12; in2; add r13 r14";

const CASES: [Case; 15] = [
    Case {
        name: "normalise, relu [50176, 64] bf16",
        rows: 50176,
        cols: 64,
        loads: "full:bf16 col:f32 col:f32 col:f32",
        program: "in0; in1; sub r0 r1; in2; mul r2 r3; in3; add r4 r5; relu r6; bf16 r7",
        outputs: "store:bf16 r8",
    },
    Case {
        name: "normalise, relu [4096, 64] bf16, in cache",
        rows: 4096,
        cols: 64,
        loads: "full:bf16 col:f32 col:f32 col:f32",
        program: "in0; in1; sub r0 r1; in2; mul r2 r3; in3; add r4 r5; relu r6; bf16 r7",
        outputs: "store:bf16 r8",
    },
    Case {
        name: "residual, relu [50176, 256] bf16",
        rows: 50176,
        cols: 256,
        loads: "full:bf16 col:f32 col:f32 col:f32 full:bf16",
        program: "in0; in1; sub r0 r1; in2; mul r2 r3; in3; add r4 r5; in4; add r6 r7; relu r8; bf16 r9",
        outputs: "store:bf16 r10",
    },
    Case {
        name: "batch norm dx [50176, 64] bf16",
        rows: 50176,
        cols: 64,
        loads: "full:bf16 col:f32 full:bf16 col:f32 col:f32 col:f32",
        program: "in0; in1; mul r0 r1; in2; in3; sub r3 r4; in4; mul r5 r6; in5; add r7 r8; add r2 r9; bf16 r10",
        outputs: "store:bf16 r11",
    },
    Case {
        name: "mask, two sums [4096, 64] bf16, in cache",
        rows: 4096,
        cols: 64,
        loads: "full:bf16 col:f32 col:f32 col:f32 full:f32",
        program: "in0; in1; sub r0 r1; in2; mul r2 r3; in3; add r4 r5; relu r6; bf16 r7; 0; gt r8 r9; in4; bf16 r11; \
             select r10 r12 r9; bf16 r13; mul r14 r2",
        outputs: "store:bf16 r14, sum r14, sum r15",
    },
    Case {
        name: "round, moments [4096, 64] bf16, in cache",
        rows: 4096,
        cols: 64,
        loads: "full:f32",
        program: "in0; bf16 r0",
        outputs: "store:bf16 r1, moments r1",
    },
    Case {
        name: "layer norm [2048, 768] bf16",
        rows: 2048,
        cols: 768,
        loads: "full:bf16 col:f32 col:f32",
        program: LAYER_NORM,
        outputs: "store:bf16 r15",
    },
    Case {
        name: "layer norm [2048, 768] f32",
        rows: 2048,
        cols: 768,
        loads: "full:f32 col:f32 col:f32",
        program: LAYER_NORM,
        outputs: "store:f32 r15",
    },
    Case {
        name: "GELU (tanh) [1024, 3072] bf16",
        rows: 1024,
        cols: 3072,
        loads: "full:f32 col:f32",
        program: "in0; bf16 r0; in1; add r1 r2; square r3; mul r4 r3; 0.044715; mul r5 r6; add r3 r7; 0.7978845608028654; \
             mul r8 r9; tanh r10; 1; add r11 r12; 0.5; mul r3 r14; mul r13 r15",
        outputs: "store:bf16 r16",
    },
    Case {
        name: "GELU (erf) [1024, 3072] f32",
        rows: 1024,
        cols: 3072,
        loads: "full:f32 col:f32",
        program: "in0; in1; add r0 r1; 0.7071067811865476; mul r2 r3; erf r4; 1; add r5 r6; 0.5; mul r2 r8; mul r7 r9",
        outputs: "store:f32 r10",
    },
    Case {
        name: "softmax [2048, 768] f32",
        rows: 2048,
        cols: 768,
        loads: "full:f32",
        program: "in0; row_max r0; sub r0 r1; exp r2; row_sum r3; div r3 r4",
        outputs: "store:f32 r5",
    },
    Case {
        name: "AdamW [3072, 768] f32",
        rows: 3072,
        cols: 768,
        loads: "one:f32 full:f32 full:f32 one:f32 full:f32 one:f32 full:f32 one:f32",
        program: "in0; in1; 0.9; mul r1 r2; in2; in3; mul r4 r5; 0.09999999999999998; mul r6 r7; add r3 r8; select r0 r9 r1; \
             in4; 0.999; mul r11 r12; square r6; 0.0010000000000000009; mul r14 r15; add r13 r16; select r0 r17 r11; in5; \
             in6; mul r9 r20; in7; mul r17 r22; sqrt r23; 0.000001; add r24 r25; div r21 r26; 0.01; mul r19 r28; \
             add r27 r29; 0.0001; mul r30 r31; sub r19 r32; select r0 r33 r19",
        outputs: "store:f32 r10, store:f32 r18, store:f32 r34",
    },
    Case {
        name: "bias, relu [50176, 64] f32",
        rows: 50176,
        cols: 64,
        loads: "full:f32 col:f32",
        program: "in0; in1; add r0 r1; relu r2",
        outputs: "store:f32 r3",
    },
    Case {
        name: "residual, relu [50176, 64] f32",
        rows: 50176,
        cols: 64,
        loads: "full:f32 col:f32 col:f32 col:f32 full:f32",
        program: "in0; in1; sub r0 r1; in2; mul r2 r3; in3; add r4 r5; in4; add r6 r7; relu r8",
        outputs: "store:f32 r9",
    },
    Case {
        name: "normalise, relu [1000, 49] bf16, odd columns",
        rows: 1000,
        cols: 49,
        loads: "full:bf16 col:f32 col:f32 col:f32",
        program: "in0; in1; sub r0 r1; in2; mul r2 r3; in3; add r4 r5; relu r6; bf16 r7",
        outputs: "store:bf16 r8",
    },
];

fn dtype(name: &str) -> DType {
    if name == "bf16" { DType::Bf16 } else { DType::F32 }
}

fn instr(text: &str) -> Instr {
    let words: Vec<&str> = text.split_whitespace().collect();
    let reg = |i: usize| words[i][1..].parse().expect("a register");
    match words[0] {
        "select" => Instr::Select(reg(1), reg(2), reg(3)),
        "bf16" => Instr::Cast(DType::Bf16, reg(1)),
        "row_sum" => Instr::Reduce(ReduceKind::Sum, reg(1)),
        "row_max" => Instr::Reduce(ReduceKind::Max, reg(1)),
        word => {
            if let Some(load) = word.strip_prefix("in") {
                return Instr::Load(load.parse().expect("a load"));
            }
            if let Some(kind) = BinaryKind::ALL.into_iter().find(|kind| kind.name() == word) {
                return Instr::Binary(kind, reg(1), reg(2));
            }
            match UnaryKind::ALL.into_iter().find(|kind| kind.name() == word) {
                Some(kind) => Instr::Unary(kind, reg(1)),
                None => Instr::Const(Scalar(word.parse().expect("a number"))),
            }
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let isa = arguments.next().map_or(Isa::detect(), |name| name.parse().expect("an instruction set"));
    let filter = arguments.next().unwrap_or_default();
    println!("{isa}: ns per element on one thread, GB/s of inputs and outputs on one thread and on all");
    for case in CASES.iter().filter(|case| case.name.contains(&filter)) {
        run(case, isa);
    }
}

fn run(case: &Case, isa: Isa) {
    let (rows, cols) = (case.rows, case.cols);
    let mut loads = Vec::new();
    let mut types = Vec::new();
    for load in case.loads.split_whitespace() {
        let (kind, name) = load.split_once(':').expect("a load has a type");
        let (index_map, elements) = match kind {
            "full" => (IndexMap::full(rows), rows * cols),
            "col" => (IndexMap { row_div: 1, row_mod: 1, by_col: true }, cols),
            _ => (IndexMap::SCALAR, 1),
        };
        loads.push(index_map);
        types.push(TensorType::new(dtype(name), [elements]));
    }
    let outputs: Vec<FusionOutput> = case
        .outputs
        .split(", ")
        .map(|text| {
            let (kind, reg) = text.split_once(" r").expect("an output has a register");
            let reg = reg.parse().expect("a register");
            match kind {
                "sum" => FusionOutput::Sum { reg, groups: 1, shape: [cols].into() },
                "moments" => FusionOutput::MeanVar { reg, shape: [cols].into() },
                _ => FusionOutput::Store { reg, ty: TensorType::new(dtype(&kind[6..]), [rows, cols]) },
            }
        })
        .collect();
    let program = case.program.split(';').map(|text| instr(text.trim())).collect();
    let fusion = Fusion { producer: None, rows, cols, loads, program, outputs };
    let kernel = FusionKernel::compile(&fusion, &types);
    let values: Vec<f32> = (0..rows * cols).map(|i| (i * 2_654_435_761 % 1000) as f32 / 500.0 - 0.9).collect();
    let mut inputs: Vec<Vec<u64>> = types.iter().map(|ty| vec![0; ty.bytes().div_ceil(8)]).collect();
    for (input, ty) in inputs.iter_mut().zip(&types) {
        // SAFETY: the memory has the size of the type.
        unsafe { vector::narrow(ty.dtype, &values[..ty.shape.elements()], input.as_mut_ptr().cast()) };
    }
    let output_types: Vec<TensorType> = fusion.outputs.iter().flat_map(FusionOutput::types).collect();
    let mut results: Vec<Vec<u64>> = output_types.iter().map(|ty| vec![0; ty.bytes().div_ceil(8)]).collect();
    let loads: Vec<*const u8> = inputs.iter().map(|input| input.as_ptr().cast()).collect();
    let targets: Vec<*mut u8> = results.iter_mut().map(|result| result.as_mut_ptr().cast()).collect();
    let io = FusionIo { producer: std::ptr::null(), loads: &loads, outputs: &targets };
    let bytes: usize = types.iter().chain(&output_types).map(TensorType::bytes).sum();
    let seconds = |threads: usize| {
        let pool = ThreadPool::new(threads);
        let mut scratch = vec![0.0; kernel.run_scratch_len(threads)];
        let mut best = f64::INFINITY;
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < 0.25 {
            let begin = Instant::now();
            // SAFETY: the memory has the sizes of the fusion.
            unsafe { kernel.run(Ctx::alone(isa, &pool), &io, &mut scratch) };
            best = best.min(begin.elapsed().as_secs_f64());
        }
        best
    };
    let (one, all) = (seconds(1), seconds(std::thread::available_parallelism().map_or(1, usize::from)));
    let (element, rate) = (one * 1e9 / (rows * cols) as f64, bytes as f64 / 1e9);
    println!("{:48} {element:7.3} ns {:6.1} GB/s {:6.1} GB/s", case.name, rate / one, rate / all);
}
