//! Fusions where blocks, tiles and memory meet: roundings, lengths, parts of the columns, values read several times.

use bessemer_cpu::fusion::{FusionIo, FusionKernel, Partials};
use bessemer_cpu::gemm::Ctx;
use bessemer_cpu::isa::Isa;
use bessemer_cpu::threads::ThreadPool;
use bessemer_cpu::vector;
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::{DType, Shape, TensorType};
use support::{Case, Random, same_bits};

mod support;

/// A fusion of one row of the domain's elements by its parts.
fn case(
    rows: usize,
    cols: usize,
    loads: Vec<(IndexMap, DType, Vec<f32>)>,
    program: Vec<Instr>,
    outputs: Vec<FusionOutput>,
) -> Case {
    let types = loads.iter().map(|(index_map, dtype, _)| TensorType::new(*dtype, [index_map.elements(cols)])).collect();
    let index_maps = loads.iter().map(|(index_map, ..)| *index_map).collect();
    let data = loads.into_iter().map(|(.., values)| values).collect();
    let fusion = Fusion { producer: None, rows, cols, loads: index_maps, program, outputs };
    Case { fusion, types, loads: data, producer: Vec::new() }
}

const COLUMN: IndexMap = IndexMap { row_div: 1, row_mod: 1, by_col: true };

/// Rounding to `bf16` in vectors, kept as `f32` and stored, equals the scalar function: on all exponents, ties, numbers just
/// beside them, infinities and NaN. A subnormal number may become zero of its sign.
#[test]
fn roundings_to_bf16_equal_the_scalar_one() {
    let mantissas = [
        0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1_0000, 0x1_8000, 0x2_8000, 0x40_0000, 0x7F_7FFF, 0x7F_8000, 0x7F_FFFF,
    ];
    let mut random = Random(17);
    let mut values: Vec<f32> = Vec::new();
    for top in 0..512u32 {
        values.extend(mantissas.map(|mantissa| f32::from_bits(top << 23 | mantissa)));
        values.extend((0..8).map(|_| f32::from_bits(top << 23 | random.next() as u32 & 0x7F_FFFF)));
    }
    values.resize(values.len().next_multiple_of(256) + 77, f32::NAN);
    let cols = values.len();
    let store = |reg, dtype| FusionOutput::Store { reg, ty: TensorType::new(dtype, [1, cols]) };
    let loads = vec![(IndexMap::full(1), DType::F32, values.clone())];
    let program = vec![Instr::Load(0), Instr::Cast(DType::Bf16, 0), Instr::Unary(UnaryKind::Neg, 1)];
    let outputs = vec![store(0, DType::Bf16), store(1, DType::Bf16), store(1, DType::F32), store(2, DType::Bf16)];
    let case = case(1, cols, loads, program, outputs);
    for isa in Isa::available() {
        let results = case.run(isa, 1);
        for (i, &x) in values.iter().enumerate() {
            let rounded = vector::cast(DType::Bf16, x);
            for (output, sign) in results.iter().zip([1.0, 1.0, 1.0, -1.0]) {
                let (got, want) = (output[i], sign * rounded);
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                let flushed = x.is_subnormal() && got == 0.0 && got.is_sign_negative() == want.is_sign_negative();
                assert!(same || flushed, "{isa}: {x:e} ({:#x}) becomes {got:e} instead of {want:e}", x.to_bits());
            }
        }
    }
}

/// The last block of a tile may be longer than what is left of a row; tile buffers of values of the columns lie side by side.
#[test]
fn tile_buffers_have_room_for_the_last_block() {
    let (rows, mut random) = (2, Random(29));
    for cols in [1152, 1300, 1365, 1600] {
        let mut column = || -> Vec<f32> { (0..cols).map(|_| random.float()).collect() };
        let columns: [Vec<f32>; 4] = [(); 4].map(|()| column());
        let x: Vec<f32> = (0..rows * cols).map(|_| random.float()).collect();
        let mut loads: Vec<_> = columns.iter().map(|values| (COLUMN, DType::F32, values.clone())).collect();
        loads.push((IndexMap::full(rows), DType::F32, x.clone()));
        let multiply = |a, b| Instr::Binary(BinaryKind::Mul, a, b);
        let program = vec![
            Instr::Load(0),
            Instr::Load(1),
            multiply(0, 1),
            Instr::Load(2),
            Instr::Load(3),
            multiply(3, 4),
            Instr::Load(4),
            multiply(6, 2),
            Instr::Binary(BinaryKind::Add, 7, 5),
        ];
        let ty = TensorType::new(DType::F32, [rows, cols]);
        let case = case(rows, cols, loads, program, vec![FusionOutput::Store { reg: 8, ty }]);
        for isa in Isa::available() {
            let results = case.run(isa, 1);
            for (i, &found) in results[0].iter().enumerate() {
                let [a, b, c, d] = columns.each_ref().map(|values| values[i % cols]);
                let expected = x[i] * (a * b) + c * d;
                assert!((found - expected).abs() <= 1e-5, "{isa}, {cols} columns, {i}: {found} is not {expected}");
            }
        }
    }
}

/// Every length of a row and of a tile's last block, with sums, moments and reductions of rows.
#[test]
fn blocks_may_be_cut_anywhere() {
    let mut random = Random(23);
    for len in 1..=200 {
        for (rows, cols) in [(1, len), (3, len), (len, 2), (5, 256 + len)] {
            let n = rows * cols;
            let x: Vec<f32> = (0..n).map(|_| vector::cast(DType::Bf16, random.float())).collect();
            let y: Vec<f32> = (0..n).map(|_| random.float()).collect();
            let scale: Vec<f32> = (0..cols).map(|_| random.float()).collect();
            let full = IndexMap::full(rows);
            let loads = vec![
                (full, DType::Bf16, x.clone()),
                (full, DType::F32, y.clone()),
                (COLUMN, DType::F32, scale.clone()),
            ];
            let mut program = vec![
                Instr::Load(0),
                Instr::Load(1),
                Instr::Load(2),
                Instr::Binary(BinaryKind::Mul, 0, 2),
                Instr::Binary(BinaryKind::Add, 3, 1),
                Instr::Cast(DType::Bf16, 4),
            ];
            let shape = Shape::from([cols]);
            let mut outputs = vec![
                FusionOutput::Store { reg: 5, ty: TensorType::new(DType::Bf16, [rows, cols]) },
                FusionOutput::Store { reg: 4, ty: TensorType::f32([rows, cols]) },
                FusionOutput::Sum { reg: 4, groups: 1, shape: shape.clone() },
                FusionOutput::MeanVar { reg: 4, shape },
            ];
            let expected: Vec<f32> = (0..n).map(|i| x[i] * scale[i % cols] + y[i]).collect();
            for by_rows in [false, true] {
                if by_rows {
                    program.push(Instr::Reduce(ReduceKind::Max, 4));
                    outputs.push(FusionOutput::Rows { reg: 6, ty: TensorType::f32([rows]) });
                }
                let case = case(rows, cols, loads.clone(), program.clone(), outputs.clone());
                let first = case.run(Isa::detect(), 1);
                for isa in Isa::available() {
                    let results = case.run(isa, 2);
                    assert!(results.iter().zip(&first).all(|(a, b)| same_bits(a, b)), "{isa}, [{rows}, {cols}]");
                }
                let rounded: Vec<f32> = expected.iter().map(|&x| vector::cast(DType::Bf16, x)).collect();
                assert_eq!(first[0], rounded, "[{rows}, {cols}]");
                assert_eq!(first[1], expected, "[{rows}, {cols}]");
                for (col, &sum) in first[2].iter().enumerate() {
                    let column = || expected.iter().skip(col).step_by(cols).map(|&x| f64::from(x));
                    let mean = column().sum::<f64>() / rows as f64;
                    let variance = column().map(|x| (x - mean).powi(2)).sum::<f64>() / rows as f64;
                    let near = |got: f32, want: f64| (f64::from(got) - want).abs() < 1e-5 * (1.0 + want.abs());
                    assert!(near(sum, mean * rows as f64), "sum of [{rows}, {cols}]");
                    assert!(near(first[3][col], mean) && near(first[4][col], variance), "moments of [{rows}, {cols}]");
                }
                if by_rows {
                    let most = |row: &[f32]| row.iter().copied().fold(f32::MIN, f32::max);
                    let most: Vec<f32> = expected.chunks(cols).map(most).collect();
                    assert_eq!(first[5], most, "[{rows}, {cols}]");
                }
            }
        }
    }
}

/// Parts of the columns, whose rows are not neighbours in memory, with blocks in place and beside.
#[test]
fn parts_of_the_columns_are_computed_alone() {
    let (rows, cols) = (9, 1100);
    let mut random = Random(29);
    let x: Vec<f32> = (0..rows * cols).map(|_| vector::cast(DType::Bf16, random.float())).collect();
    let program = vec![Instr::Load(0), Instr::Const(Scalar(1.5)), Instr::Binary(BinaryKind::Mul, 0, 1)];
    let outputs = vec![
        FusionOutput::Store { reg: 2, ty: TensorType::new(DType::Bf16, [rows, cols]) },
        FusionOutput::Sum { reg: 0, groups: 1, shape: [cols].into() },
    ];
    let case = case(rows, cols, vec![(IndexMap::full(rows), DType::Bf16, x.clone())], program, outputs);
    for isa in Isa::available() {
        for part in [32, 64, 100, 256, 300, 512, 1024] {
            let results = case.run_with(|kernel, io| {
                let pool = ThreadPool::new(1);
                let mut partials = vec![f32::NAN; kernel.partials_len(1)];
                let partials = Partials(partials.as_mut_ptr());
                let mut scratch = vec![f32::NAN; kernel.scratch_len()];
                for start in (0..cols).step_by(part) {
                    // SAFETY: the memory of the case has the sizes of the fusion.
                    unsafe {
                        kernel.run_rows(isa, io, 0..rows, start..cols.min(start + part), 0, &mut scratch, partials)
                    };
                }
                // SAFETY: as above.
                unsafe { kernel.finish(Ctx::alone(isa, &pool), io, partials, rows) };
            });
            let expected: Vec<f32> = x.iter().map(|&x| vector::cast(DType::Bf16, 1.5 * x)).collect();
            assert_eq!(results[0], expected, "{isa}, {part} columns");
            for (col, &sum) in results[1].iter().enumerate() {
                let want: f32 = x.iter().skip(col).step_by(cols).sum();
                assert!((sum - want).abs() < 1e-5, "{isa}, {part} columns");
            }
        }
    }
}

/// Values that several instructions read, also as conditions, with both operands to be computed.
#[test]
fn values_may_be_used_several_times() {
    let (rows, cols) = (37, 40);
    let mut random = Random(31);
    let data: Vec<Vec<f32>> = (0..2).map(|_| (0..rows * cols).map(|_| random.float()).collect()).collect();
    let loads = data.iter().map(|values| (IndexMap::full(rows), DType::F32, values.clone())).collect();
    let program = vec![
        Instr::Load(0),
        Instr::Load(1),
        Instr::Binary(BinaryKind::Sub, 0, 1),
        Instr::Unary(UnaryKind::Square, 0),
        Instr::Binary(BinaryKind::Lt, 2, 3),
        Instr::Select(4, 2, 3),
        Instr::Binary(BinaryKind::Div, 5, 2),
        Instr::Select(2, 6, 4),
        Instr::Binary(BinaryKind::Mul, 7, 7),
        Instr::Binary(BinaryKind::Sub, 4, 8),
        Instr::Binary(BinaryKind::Pow, 3, 9),
        Instr::Binary(BinaryKind::Min, 2, 10),
        Instr::Select(4, 11, 2),
        Instr::Binary(BinaryKind::Add, 12, 3),
    ];
    let store = |reg| FusionOutput::Store { reg, ty: TensorType::f32([rows, cols]) };
    let case = case(rows, cols, loads, program, (2..14).map(store).collect());
    let registers = case.evaluate();
    for isa in Isa::available() {
        for (result, expected) in case.run(isa, 1).iter().zip(&registers[2..]) {
            let expected: Vec<f32> = expected.iter().map(|&x| x as f32).collect();
            assert!(same_bits(result, &expected), "{isa}");
        }
    }
}

/// Several stores, of which each may take the memory of any input.
#[test]
fn stores_do_not_spoil_what_others_read() {
    let (rows, cols) = (50, 24);
    let n = rows * cols;
    let mut random = Random(37);
    let inputs: Vec<Vec<f32>> = (0..2).map(|_| (0..n).map(|_| random.float()).collect()).collect();
    let store = |reg| FusionOutput::Store { reg, ty: TensorType::f32([rows, cols]) };
    let fusion = Fusion {
        producer: None,
        rows,
        cols,
        loads: vec![IndexMap::full(rows); 2],
        program: vec![
            Instr::Load(0),
            Instr::Load(1),
            Instr::Binary(BinaryKind::Add, 0, 1),
            Instr::Binary(BinaryKind::Mul, 2, 0),
        ],
        outputs: vec![store(2), store(0), store(3), store(1)],
    };
    let kernel = FusionKernel::compile(&fusion, &[TensorType::f32([rows, cols]), TensorType::f32([rows, cols])]);
    let sum: Vec<f32> = inputs[0].iter().zip(&inputs[1]).map(|(a, b)| a + b).collect();
    let product: Vec<f32> = sum.iter().zip(&inputs[0]).map(|(a, b)| a * b).collect();
    let expected = [&sum, &inputs[0], &product, &inputs[1]];
    for isa in Isa::available() {
        // The outputs that take the memory of the two inputs.
        for (a, b) in [(0, 1), (0, 3), (1, 0), (2, 0), (3, 1), (3, 2), (1, 3)] {
            let pool = ThreadPool::new(2);
            let mut memory: Vec<Vec<f32>> = vec![inputs[0].clone(), inputs[1].clone(), vec![0.0; n], vec![0.0; n]];
            let pointers: Vec<*mut f32> = memory.iter_mut().map(|m| m.as_mut_ptr()).collect();
            let mut spare = [2, 3].into_iter();
            let places: Vec<usize> = (0..4)
                .map(|output| match output {
                    _ if output == a => 0,
                    _ if output == b => 1,
                    _ => spare.next().unwrap(),
                })
                .collect();
            let outputs: Vec<*mut u8> = places.iter().map(|&place| pointers[place].cast()).collect();
            let loads = [pointers[0].cast_const().cast(), pointers[1].cast_const().cast()];
            let mut scratch = vec![0.0; kernel.run_scratch_len(2)];
            let io = FusionIo { producer: std::ptr::null(), loads: &loads, outputs: &outputs };
            // SAFETY: the memory has the sizes of the fusion.
            unsafe { kernel.run(Ctx::alone(isa, &pool), &io, &mut scratch) };
            for (output, place) in places.into_iter().enumerate() {
                assert_eq!(&memory[place], expected[output], "{isa}, output {output}, {a} and {b} in place");
            }
        }
    }
}
