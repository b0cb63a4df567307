//! A fusion with the data of its inputs, its memory, and its results.

use bessemer_cpu::fusion::{FusionIo, FusionKernel};
use bessemer_cpu::gemm::Ctx;
use bessemer_cpu::isa::Isa;
use bessemer_cpu::threads::ThreadPool;
use bessemer_cpu::vector;
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, Instr, Reg, RegType};
use bessemer_ir::{DType, TensorType, philox};

/// SplitMix64.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub(crate) fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Bytes aligned as tensors are.
pub(crate) struct Memory {
    words: Vec<u64>,
}

impl Memory {
    pub(crate) fn new(bytes: usize) -> Memory {
        Memory { words: vec![0; bytes.div_ceil(8)] }
    }

    pub(crate) fn holding(dtype: DType, values: &[f32]) -> Memory {
        let mut memory = Memory::new(values.len() * dtype.size());
        // SAFETY: the memory has room for the values.
        unsafe { vector::narrow(dtype, values, memory.ptr()) };
        memory
    }

    pub(crate) fn ptr(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }

    pub(crate) fn values(&self, dtype: DType, len: usize) -> Vec<f32> {
        let mut values = vec![0.0; len];
        // SAFETY: the memory holds that many elements.
        unsafe { vector::widen(dtype, self.words.as_ptr().cast(), &mut values) };
        values
    }
}

pub(crate) struct Case {
    pub fusion: Fusion,
    pub types: Vec<TensorType>,
    pub loads: Vec<Vec<f32>>,
    pub producer: Vec<f32>,
}

impl Case {
    /// Registers at every position, by the scalar functions; `f64` holds both `f32` and `i32`.
    pub(crate) fn evaluate(&self) -> Vec<Vec<f64>> {
        let fusion = &self.fusion;
        let dtypes: Vec<DType> = self.types.iter().map(|ty| ty.dtype).collect();
        let types = fusion.register_types(&dtypes).expect("a legal program");
        let mut registers: Vec<Vec<f64>> = Vec::new();
        for instr in &fusion.program {
            let float = |r: Reg, i: usize| registers[r as usize][i] as f32;
            let integer = |r: Reg, i: usize| registers[r as usize][i] as i32;
            let is_integer = |r: Reg| types[r as usize] == RegType::I32;
            let value = |i: usize| {
                f64::from(match *instr {
                    Instr::Int(x) => return f64::from(x),
                    Instr::Load(n) if dtypes[n as usize] == DType::I32 => {
                        let index_map = fusion.loads[n as usize];
                        let x = self.loads[n as usize][index_map.index(fusion.cols, i / fusion.cols, i % fusion.cols)];
                        return f64::from(x as i32);
                    }
                    Instr::Binary(kind, a, b) if is_integer(a) => {
                        return f64::from(kind.apply_i32(integer(a, i), integer(b, i)));
                    }
                    Instr::Cast(DType::I32, a) if !is_integer(a) => return f64::from(float(a, i) as i32),
                    Instr::Cast(DType::I32, a) => return f64::from(integer(a, i)),
                    Instr::Cast(DType::F32, a) if is_integer(a) => integer(a, i) as f32,
                    Instr::Select(c, a, b) => return registers[if float(c, i) != 0.0 { a } else { b } as usize][i],

                    Instr::Producer => self.producer[i],
                    Instr::Load(n) => {
                        let index_map = fusion.loads[n as usize];
                        self.loads[n as usize][index_map.index(fusion.cols, i / fusion.cols, i % fusion.cols)]
                    }
                    Instr::Const(c) => c.0 as f32,
                    Instr::Unary(kind, a) => vector::unary(kind, float(a, i)),
                    Instr::Binary(kind, a, b) => vector::binary(kind, float(a, i), float(b, i)),
                    Instr::Cast(to, a) => vector::cast(to, float(a, i)),
                    Instr::OneHot(a) => {
                        let is_here = i64::from(integer(a, i)) == (i % fusion.cols) as i64;
                        f32::from(u8::from(is_here))
                    }
                    Instr::Random { seed, stream, step } => {
                        philox::uniform(seed, self.loads[step as usize][0] as u32, stream, i as u64)
                    }
                    Instr::Reduce(..) => unreachable!("the order of a reduction is the kernel's own"),
                })
            };
            let column = (0..fusion.rows * fusion.cols).map(value).collect();
            registers.push(column);
        }
        registers
    }

    pub(crate) fn output_types(&self) -> Vec<TensorType> {
        self.fusion.outputs.iter().flat_map(FusionOutput::types).collect()
    }

    pub(crate) fn run(&self, isa: Isa, threads: usize) -> Vec<Vec<f32>> {
        self.run_with(|kernel, io| {
            let pool = ThreadPool::new(threads);
            let mut scratch = vec![f32::NAN; kernel.run_scratch_len(threads)];
            // SAFETY: the memory of the case has the sizes of the fusion.
            unsafe { kernel.run(Ctx::alone(isa, &pool), io, &mut scratch) };
        })
    }

    pub(crate) fn run_with(&self, run: impl FnOnce(&FusionKernel, &FusionIo<'_>)) -> Vec<Vec<f32>> {
        let kernel = FusionKernel::compile(&self.fusion, &self.types);
        let mut loads: Vec<Memory> =
            self.loads.iter().zip(&self.types).map(|(values, ty)| Memory::holding(ty.dtype, values)).collect();
        let types = self.output_types();
        let mut outputs: Vec<Memory> = types.iter().map(|ty| Memory::new(ty.bytes())).collect();
        let load_pointers: Vec<*const u8> = loads.iter_mut().map(|m| m.ptr().cast_const()).collect();
        let output_pointers: Vec<*mut u8> = outputs.iter_mut().map(Memory::ptr).collect();
        run(&kernel, &FusionIo { producer: self.producer.as_ptr(), loads: &load_pointers, outputs: &output_pointers });
        outputs.iter().zip(&types).map(|(memory, ty)| memory.values(ty.dtype, ty.shape.elements())).collect()
    }
}

pub(crate) fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan()))
}
