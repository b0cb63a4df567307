//! Fusions against the reference, on every instruction set of the machine.

use bessemer_cpu::fusion::{FusionIo, FusionKernel, Partials};
use bessemer_cpu::gemm::Ctx;
use bessemer_cpu::isa::Isa;
use bessemer_cpu::threads::ThreadPool;
use bessemer_cpu::vector;
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr, Reg, RegType};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::ops::{OpRule, Scalar};
use bessemer_ir::reference::Tensor;
use bessemer_ir::{DType, Shape, TensorType};
use support::{Case, Random, same_bits};

mod support;

impl Random {
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

const DTYPES: [DType; 6] = [DType::F32, DType::Bf16, DType::F16, DType::I32, DType::U8, DType::Bool];
/// Those that registers of floats are stored as.
const FLOATS: [DType; 5] = [DType::F32, DType::Bf16, DType::F16, DType::U8, DType::Bool];

impl Case {
    /// `smooth`: programs that amplify rounding errors little, for comparison with `f64`.
    fn random(seed: u64, smooth: bool) -> Case {
        let mut random = Random(seed);
        let shapes = [
            (1, 1),
            (1, 37),
            (1, 5000),
            (5, 3),
            (64, 10),
            (33, 64),
            (96, 100),
            (9, 1500),
            (3000, 3),
            (640, 16),
            (48, 2048),
            (2, 5000),
            (700, 1),
            (12, 600),
            (360, 7),
            (2400, 24),
        ];
        let (rows, cols) = random.pick(&shapes);
        let mut loads = Vec::new();
        let mut types = Vec::new();
        let mut data = Vec::new();
        for _ in 0..1 + random.below(4) {
            let index_map = random_access(&mut random, rows);
            let elements = index_map.elements(cols);
            let dtype = if random.below(2) == 0 { DType::F32 } else { random.pick(&DTYPES) };
            let values =
                (0..elements).map(|_| vector::cast(dtype, random.float() * if dtype.is_float() { 1.5 } else { 40.0 }));
            data.push(values.collect());
            types.push(TensorType::new(dtype, [elements]));
            loads.push(index_map);
        }
        loads.push(IndexMap::SCALAR);
        types.push(TensorType::new(DType::I32, []));
        data.push(vec![7.0]);
        let producer = (0..rows * cols).map(|_| random.float() * 2.0).collect();
        let rowwise = smooth && random.below(2) == 0;
        let dtypes: Vec<DType> = types.iter().map(|ty: &TensorType| ty.dtype).collect();
        let (program, registers) = random_program(&mut random, &loads, &dtypes, smooth, rowwise.then_some(cols));
        let mut outputs = random_outputs(&mut random, rows, cols, &registers, smooth);
        if let Some(reg) = program.iter().position(|i| matches!(i, Instr::Reduce(..))) {
            outputs.push(FusionOutput::Rows { reg: reg as Reg, ty: TensorType::f32([rows]) });
        }
        Case { fusion: Fusion { producer: None, rows, cols, loads, program, outputs }, types, loads: data, producer }
    }
}

fn random_access(random: &mut Random, rows: usize) -> IndexMap {
    let divisors: Vec<usize> = (1..=rows).filter(|d| rows.is_multiple_of(*d)).collect();
    let divisor = random.pick(&divisors);
    match random.below(8) {
        0..=2 => IndexMap::full(rows),
        3 => IndexMap::SCALAR,
        4 => IndexMap { row_div: 1, row_mod: 1, by_col: true },
        5 => IndexMap { row_div: rows / divisor, row_mod: divisor, by_col: random.below(2) == 0 },
        6 => IndexMap { row_div: 1, row_mod: divisor, by_col: random.below(2) == 0 },
        _ => IndexMap { row_div: divisor, row_mod: random.pick(&divisors), by_col: true },
    }
}

/// `cols`: of programs with reductions along rows, the last load being the step of random numbers.
fn random_program(
    random: &mut Random,
    index_maps: &[IndexMap],
    types: &[DType],
    smooth: bool,
    cols: Option<usize>,
) -> (Vec<Instr>, Vec<RegType>) {
    let smooth_unary =
        [UnaryKind::Neg, UnaryKind::Abs, UnaryKind::Relu, UnaryKind::Sigmoid, UnaryKind::Tanh, UnaryKind::Erf];
    let smooth_binary = [BinaryKind::Add, BinaryKind::Sub, BinaryKind::Max, BinaryKind::Min];
    let loads = index_maps.len();
    let mut program: Vec<Instr> = (0..loads).map(|i| Instr::Load(i as u16)).collect();
    program.extend([Instr::Producer, Instr::Const(Scalar(0.5)), Instr::Const(Scalar(0.0))]);
    program.push(Instr::Random { seed: random.next(), stream: 3, step: (loads - 1) as u16 });
    program.extend(
        (0..loads).filter(|&i| !index_maps[i].by_col && types[i] == DType::I32).map(|i| Instr::OneHot(i as Reg)),
    );
    let mut registers = Vec::new();
    for instr in &program {
        registers.push(instr.result_type(&registers, types).expect("a legal instruction"));
    }
    for _ in 0..1 + random.below(14) {
        let n = program.len();
        let mut reg = || random.below(n) as Reg;
        let (a, b, c) = (reg(), reg(), reg());
        if let Some(cols) = cols
            && random.below(3) == 0
        {
            let kind = random.pick(&ReduceKind::ALL);
            let share = if kind == ReduceKind::Sum { 1.0 / cols as f64 } else { 1.0 };
            let factor = program.len() as Reg;
            if registers[a as usize] == RegType::F32 {
                program.push(Instr::Const(Scalar(share)));
                program.push(Instr::Binary(BinaryKind::Mul, a, factor));
                program.push(Instr::Reduce(kind, factor + 1));
                registers.extend([RegType::F32; 3]);
            }
            continue;
        }
        let instr = match random.below(9) {
            0..=2 if smooth => Instr::Unary(random.pick(&smooth_unary), a),
            3 if smooth => Instr::Cast(DType::F32, a),
            _ if smooth => Instr::Binary(random.pick(&smooth_binary), a, b),
            0..=2 => Instr::Unary(random.pick(&UnaryKind::ALL), a),
            3 => Instr::Select(c, a, b),
            4 => Instr::Cast(random.pick(&DTYPES), a),
            5 => Instr::Int(random.pick(&[3, -7, (1 << 24) + 1, i32::MAX])),
            _ => Instr::Binary(random.pick(&BinaryKind::ALL), a, b),
        };
        if let Ok(ty) = instr.result_type(&registers, types) {
            program.push(instr);
            registers.push(ty);
        }
    }
    (program, registers)
}

fn random_outputs(
    random: &mut Random,
    rows: usize,
    cols: usize,
    registers: &[RegType],
    smooth: bool,
) -> Vec<FusionOutput> {
    let divisors: Vec<usize> = (1..=rows).filter(|d| rows.is_multiple_of(*d)).collect();
    let shape = Shape::from([cols]);
    let outputs = (0..1 + random.below(3)).map(|i| {
        let reg = if i == 0 { registers.len() - 1 } else { random.below(registers.len()) } as Reg;
        let is_float = registers[reg as usize] == RegType::F32;
        match random.below(if smooth { 4 } else { 2 }) {
            _ if !is_float => FusionOutput::Store { reg, ty: TensorType::new(DType::I32, [rows, cols]) },
            2 => {
                let groups = random.pick(&divisors);
                FusionOutput::Sum { reg, groups, shape: [groups, cols].into() }
            }
            3 => FusionOutput::MeanVar { reg, shape: shape.clone() },
            _ => {
                let dtype = if smooth { DType::F32 } else { random.pick(&FLOATS) };
                FusionOutput::Store { reg, ty: TensorType::new(dtype, [rows, cols]) }
            }
        }
    });
    outputs.collect()
}

/// Every stored element equals, bit for bit, what the scalar functions give at its position.
#[test]
fn stores_equal_scalar_evaluation() {
    for seed in 0..300 {
        let case = Case::random(seed, false);
        let registers = case.evaluate();
        for isa in Isa::available() {
            let results = case.run(isa, 1 + seed as usize % 2);
            for (output, result) in case.fusion.outputs.iter().zip(&results) {
                let FusionOutput::Store { reg, ty } = output else { continue };
                let stored = |&x: &f64| match ty.dtype {
                    DType::I32 => x as f32,
                    _ => vector::cast(ty.dtype, x as f32),
                };
                let expected: Vec<f32> = registers[*reg as usize].iter().map(stored).collect();
                assert!(same_bits(result, &expected), "seed {seed}, {isa}: {}", case.fusion.attributes());
            }
        }
    }
}

/// Stores within 1e-5, sums within `1e-6 * rows.sqrt()` of the largest term times the square root of the number of
/// terms, of the reference in `f64`; equal bits with one thread and two, and on every instruction set.
#[test]
fn smooth_programs_equal_the_reference() {
    for seed in 0..300 {
        let mut case = Case::random(seed, true);
        let tensors: Vec<Tensor> = case
            .types
            .iter()
            .zip(&case.loads)
            .map(|(ty, values)| Tensor::new(ty.clone(), values.iter().map(|&x| f64::from(x)).collect()))
            .collect();
        // The reference runs a producer itself, so the producer's output is given to it as one more load.
        let as_load =
            Tensor::new(TensorType::f32([case.producer.len()]), case.producer.iter().map(|&x| f64::from(x)).collect());
        let mut with_load = case.fusion.clone();
        with_load.loads.push(IndexMap::full(with_load.rows));
        for instr in &mut with_load.program {
            if *instr == Instr::Producer {
                *instr = Instr::Load((with_load.loads.len() - 1) as u16);
            }
        }
        let inputs: Vec<&Tensor> = tensors.iter().chain([&as_load]).collect();
        let types = case.output_types();
        let reference = with_load.evaluate(&inputs, &types);
        let magnitude = 1.0 + case.loads.iter().flatten().fold(0.0f32, |m, x| m.max(x.abs()));
        let magnitude = f64::from(magnitude) * 8.0;
        let first = case.run(Isa::detect(), 1);
        for isa in Isa::available() {
            for threads in [1, 2] {
                let results = case.run(isa, threads);
                assert!(
                    results.iter().zip(&first).all(|(a, b)| same_bits(a, b)),
                    "seed {seed}: {isa} with {threads} threads gives other bits"
                );
            }
        }
        let mut index = 0;
        for output in std::mem::take(&mut case.fusion.outputs) {
            let count = output.types().len();
            for (part, expected) in reference[index..index + count].iter().enumerate() {
                let tolerance = match output {
                    FusionOutput::Store { .. } | FusionOutput::Rows { .. } => 1e-6 * magnitude,
                    FusionOutput::Sum { groups, .. } => 1e-6 * magnitude * ((case.fusion.rows / groups) as f64),
                    FusionOutput::MeanVar { .. } => 1e-6 * magnitude * if part == 1 { magnitude } else { 1.0 },
                };
                for (i, (&got, &want)) in first[index + part].iter().zip(&expected.data).enumerate() {
                    assert!(
                        (f64::from(got) - want).abs() <= tolerance,
                        "seed {seed}, output {} element {i}: {got} instead of {want}: {}",
                        index + part,
                        with_load.attributes()
                    );
                }
            }
            index += count;
        }
    }
}

/// A fusion run on blocks of rows and parts of the columns, as a convolution delivers them.
#[test]
fn parts_give_the_same_as_the_whole() {
    for seed in 0..60 {
        let case = Case::random(seed, true);
        let (rows, cols) = (case.fusion.rows, case.fusion.cols);
        let isa = Isa::detect();
        let whole = case.run(isa, 1);
        let parts = case.run_with(|kernel, io| {
            let pool = ThreadPool::new(1);
            let block_rows = kernel.block_rows();
            assert!(kernel.accepts_block_rows(block_rows), "seed {seed}");
            let blocks = rows.div_ceil(block_rows);
            let mut partials = vec![f32::NAN; kernel.partials_len(blocks)];
            let partials = Partials(partials.as_mut_ptr());
            let mut scratch = vec![f32::NAN; kernel.scratch_len()];
            // SAFETY: the memory of the case has the sizes of the fusion.
            unsafe {
                for block in 0..blocks {
                    let part = block * block_rows..rows.min((block + 1) * block_rows);
                    let step = if case.fusion.is_rowwise() { cols } else { 48 };
                    for start in (0..cols).step_by(step) {
                        let columns = start..cols.min(start + step);
                        kernel.run_rows(isa, io, part.clone(), columns, block, &mut scratch, partials);
                    }
                }
                kernel.finish(Ctx::alone(isa, &pool), io, partials, block_rows);
            }
        });
        for ((a, b), output) in whole.iter().zip(&parts).zip(case.output_types()) {
            let largest = a.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            let close = a.iter().zip(b).all(|(x, y)| (x - y).abs() <= 1e-5 * largest);
            assert!(close, "seed {seed}, {output}: {}", case.fusion.attributes());
        }
    }
}

/// MeanVar of numbers with a mean far above their deviation keep the digits of the variance.
#[test]
fn moments_do_not_cancel() {
    let (rows, cols) = (5000, 64);
    let mut random = Random(3);
    let data: Vec<f32> = (0..rows * cols).map(|i| 1000.0 * (1 + i % cols) as f32 + random.float()).collect();
    let fusion = Fusion {
        producer: None,
        rows,
        cols,
        loads: vec![IndexMap::full(rows)],
        program: vec![Instr::Load(0)],
        outputs: vec![FusionOutput::MeanVar { reg: 0, shape: [cols].into() }],
    };
    let case = Case { fusion, types: vec![TensorType::f32([rows, cols])], loads: vec![data.clone()], producer: vec![] };
    let results = case.run(Isa::detect(), 2);
    for (col, (&got_mean, &got_variance)) in results[0].iter().zip(&results[1]).enumerate() {
        let column = || data.iter().skip(col).step_by(cols).map(|&x| f64::from(x));
        let mean = column().sum::<f64>() / rows as f64;
        let variance = column().map(|x| (x - mean).powi(2)).sum::<f64>() / rows as f64;
        assert!((f64::from(got_mean) - mean).abs() < 1e-7 * mean);
        assert!((f64::from(got_variance) - variance).abs() < 1e-5 * variance, "{got_variance} {variance}");
    }
}

/// A batch normalisation that overwrites its input and keeps a mask.
#[test]
fn stores_may_overwrite_inputs_in_place() {
    let (rows, cols) = (500, 24);
    let mut random = Random(11);
    let x: Vec<f32> = (0..rows * cols).map(|_| random.float()).collect();
    let bias: Vec<f32> = (0..cols).map(|_| random.float()).collect();
    let fusion = Fusion {
        producer: None,
        rows,
        cols,
        loads: vec![IndexMap::full(rows), IndexMap { row_div: 1, row_mod: 1, by_col: true }],
        program: vec![
            Instr::Load(0),
            Instr::Load(1),
            Instr::Binary(BinaryKind::Add, 0, 1),
            Instr::Unary(UnaryKind::Relu, 2),
        ],
        outputs: vec![
            FusionOutput::Store { reg: 3, ty: TensorType::f32([rows, cols]) },
            FusionOutput::Store { reg: 0, ty: TensorType::f32([rows, cols]) },
            FusionOutput::Sum { reg: 0, groups: 1, shape: [cols].into() },
        ],
    };
    let types = [TensorType::f32([rows, cols]), TensorType::f32([cols])];
    let kernel = FusionKernel::compile(&fusion, &types);
    for isa in Isa::available() {
        let pool = ThreadPool::new(2);
        let (mut memory, mut copy, mut sums) = (x.clone(), vec![0.0f32; x.len()], vec![0.0f32; cols]);
        let mut scratch = vec![0.0; kernel.run_scratch_len(2)];
        let loads = [memory.as_ptr().cast(), bias.as_ptr().cast()];
        let outputs = [memory.as_mut_ptr().cast(), copy.as_mut_ptr().cast(), sums.as_mut_ptr().cast()];
        let io = FusionIo { producer: std::ptr::null(), loads: &loads, outputs: &outputs };
        // SAFETY: the memory has the sizes of the fusion.
        unsafe { kernel.run(Ctx::alone(isa, &pool), &io, &mut scratch) };
        let expected: Vec<f32> = x.iter().enumerate().map(|(i, &v)| vector::relu(v + bias[i % cols])).collect();
        assert_eq!(memory, expected);
        assert_eq!(copy, x);
        let sum: f64 = x.iter().step_by(cols).map(|&v| f64::from(v)).sum();
        assert!((f64::from(sums[0]) - sum).abs() < 1e-4);
    }
}

/// Units in the last place between a function and its value in `f64`.
fn ulps(got: f32, want: f64) -> f64 {
    if want.is_nan() || got.is_nan() {
        return if want.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    let rounded = want as f32;
    if rounded == got {
        return 0.0;
    }
    let unit = f64::from(f32::from_bits((rounded.abs().max(f32::MIN_POSITIVE)).to_bits() + 1))
        - f64::from(rounded.abs().max(f32::MIN_POSITIVE));
    (f64::from(got) - want).abs() / unit
}

#[test]
fn elementary_functions_are_accurate() {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MIN_POSITIVE,
        1e-40,
        f32::MAX,
        -200.0,
        200.0,
    ];
    let mut random = Random(5);
    let mut inputs: Vec<f32> = (0..200_000).map(|_| random.float() * 100.0).collect();
    inputs.extend((0..200_000).map(|_| random.float() * 3.0));
    inputs.extend((0..200_000).map(|_| f32::from_bits(random.next() as u32)));
    inputs.extend(special);
    for kind in UnaryKind::ALL {
        let periodic = matches!(kind, UnaryKind::Sin | UnaryKind::Cos);
        let mut worst = (0.0, 0.0);
        for &x in inputs.iter().filter(|x| !periodic || x.abs() < 1e6 || !x.is_finite()) {
            let vanishes = kind == UnaryKind::Sigmoid && x < -87.0;
            let error = ulps(vector::unary(kind, x), if vanishes { 0.0 } else { kind.apply(f64::from(x)) });
            if error > worst.0 {
                worst = (error, x);
            }
        }
        let limit = match kind {
            UnaryKind::Rsqrt => 2.5,
            UnaryKind::Sigmoid => 5.0,
            UnaryKind::Erf => 7.0,
            _ => 2.0,
        };
        assert!(worst.0 <= limit, "{}({}) is off by {} units", kind.name(), worst.1, worst.0);
    }
}
