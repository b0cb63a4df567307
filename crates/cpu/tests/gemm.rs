//! Matrix products against plain loops in `f64`.

mod common;

use bessemer_cpu::gemm::{
    Ctx, GemmDesc, Output, TypedSlice, Weights, gemm, pack_b, packed_b_len, row_blocks, scratch_len,
};
use bessemer_cpu::isa::Isa;
use bessemer_cpu::threads::ThreadPool;
use common::{Coverage, Random, assert_close};

struct Case {
    desc: GemmDesc,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

impl Case {
    /// Random operands for `desc`, with `gap` unused elements behind each stored row.
    fn new(random: &mut Random, desc: GemmDesc, gap: usize) -> Case {
        let batch = desc.batch;
        let desc = GemmDesc { lda: desc.lda + gap, ldb: desc.ldb + gap, ldc: desc.ldc + gap, ..desc }.batched(batch);
        let a = random.vector(desc.stride_a * batch);
        let b = random.vector(desc.stride_b * batch);
        let c = random.vector(desc.stride_c * batch);
        Case { desc, a, b, c }
    }

    fn expected(&self) -> Vec<f64> {
        let d = &self.desc;
        let mut c: Vec<f64> = self.c.iter().map(|&x| f64::from(x)).collect();
        for item in 0..d.batch {
            let (a, b) = (&self.a[item * d.stride_a..], &self.b[item * d.stride_b..]);
            for i in 0..d.m {
                for j in 0..d.n {
                    let sum: f64 = (0..d.k)
                        .map(|k| {
                            let x = if d.trans_a { a[k * d.lda + i] } else { a[i * d.lda + k] };
                            let y = if d.trans_b { b[j * d.ldb + k] } else { b[k * d.ldb + j] };
                            f64::from(x) * f64::from(y)
                        })
                        .sum();
                    let c = &mut c[item * d.stride_c + i * d.ldc + j];
                    *c = if d.accumulate { *c + sum } else { sum };
                }
            }
        }
        c
    }

    fn run(&self, isa: Isa, pool: &ThreadPool) -> Vec<f32> {
        let mut c = self.c.clone();
        let mut scratch = vec![f32::NAN; scratch_len(&self.desc, pool.threads())];
        let coverage = Coverage::new(self.desc.batch * self.desc.m, self.desc.n, row_blocks(&self.desc));
        let ctx = Ctx::alone(isa, pool);
        gemm(ctx, &self.desc, &self.a, &self.b, Output::new(&mut c), &mut scratch, Some(&coverage));
        coverage.assert_once();
        c
    }

    fn check(&self) {
        let expected = self.expected();
        for isa in Isa::available() {
            let one = self.run(isa, &ThreadPool::new(1));
            let two = self.run(isa, &ThreadPool::new(2));
            assert_close(&one, &expected, self.desc.k, &format!("{isa} {:?}", self.desc));
            assert_eq!(one, two, "{isa} {:?} depends on the number of threads", self.desc);
        }
    }
}

#[test]
fn random_shapes_and_layouts() {
    let mut random = Random(1);
    for i in 0..120 {
        let desc = GemmDesc::new(random.between(1, 90), random.between(1, 90), random.between(0, 90));
        let desc = desc.transposed(i & 1 != 0, i & 2 != 0);
        Case::new(&mut random, GemmDesc { accumulate: i & 4 != 0, ..desc }, i % 3).check();
    }
}

#[test]
fn every_tile_height_and_column_tail() {
    let mut random = Random(2);
    for i in 1..=33 {
        for trans_a in [false, true] {
            Case::new(&mut random, GemmDesc::new(i, 34 - i, 37).transposed(trans_a, false), 0).check();
        }
    }
}

#[test]
fn several_blocks_in_every_direction() {
    let mut random = Random(3);
    for (m, n, k) in [
        (300, 70, 530),
        (120, 1100, 300),
        (530, 300, 61),
        (60, 60, 2100),
        (1, 300, 700),
        (300, 1, 700),
        (301, 1301, 270),
    ] {
        for layout in 0..4 {
            let desc = GemmDesc::new(m, n, k).transposed(layout & 1 != 0, layout & 2 != 0);
            Case::new(&mut random, GemmDesc { accumulate: layout == 3, ..desc }, 0).check();
        }
    }
}

#[test]
fn batches() {
    let mut random = Random(4);
    for (batch, m, n, k) in [(2, 70, 33, 40), (9, 20, 30, 40), (17, 65, 65, 300)] {
        for layout in 0..4 {
            let desc = GemmDesc::new(m, n, k).transposed(layout & 1 != 0, layout & 2 != 0).batched(batch);
            Case::new(&mut random, desc, layout).check();
        }
    }
}

#[test]
fn packed_b_gives_the_same_bits() {
    let mut random = Random(5);
    let pool = ThreadPool::new(2);
    for (m, n, k, trans_b) in [(1, 1000, 130, false), (50, 40, 300, true)] {
        let case = Case::new(&mut random, GemmDesc::new(m, n, k).transposed(false, trans_b), 0);
        for isa in Isa::available() {
            let ctx = Ctx::alone(isa, &pool);
            let mut packed = vec![f32::NAN; packed_b_len(&case.desc)];
            pack_b(ctx, &case.desc, (&case.b).into(), &mut packed);
            let mut c = case.c.clone();
            let mut scratch = vec![f32::NAN; scratch_len(&case.desc, 2)];
            let b = Weights::Packed(&packed);
            gemm(ctx, &case.desc, &case.a, b, Output::new(&mut c), &mut scratch, None);
            assert_eq!(c, case.run(isa, &pool), "{isa} {:?}", case.desc);
        }
    }
}

#[test]
#[should_panic(expected = "B has 11 elements, 12 are needed")]
fn short_operands_are_refused() {
    let pool = ThreadPool::new(1);
    let ctx = Ctx::alone(Isa::Portable, &pool);
    let (a, b) = ([0.0f32; 6], [0.0f32; 11]);
    gemm(ctx, &GemmDesc::new(2, 4, 3), a.as_slice(), b.as_slice(), Output::new(&mut [0.0; 8]), &mut [], None);
}

/// 16-bit operands are the numbers they stand for, multiplied as `f32`.
#[test]
fn operands_of_16_bits_give_the_same_bits_as_their_values() {
    let mut random = Random(6);
    let pool = ThreadPool::new(2);
    for layout in 0..4 {
        for (m, n, k, batch) in [(70, 45, 90, 1), (9, 20, 33, 9)] {
            let desc = GemmDesc::new(m, n, k).transposed(layout & 1 != 0, layout & 2 != 0).batched(batch);
            let mut case = Case::new(&mut random, desc, 0);
            let a: Vec<half::bf16> = case.a.iter().map(|&x| half::bf16::from_f32(x)).collect();
            let b: Vec<half::f16> = case.b.iter().map(|&x| half::f16::from_f32(x)).collect();
            case.a = a.iter().map(|x| x.to_f32()).collect();
            case.b = b.iter().map(|x| x.to_f32()).collect();
            for isa in Isa::available() {
                let mut c = case.c.clone();
                let mut scratch = vec![f32::NAN; scratch_len(&case.desc, 2)];
                let ctx = Ctx::alone(isa, &pool);
                gemm(
                    ctx,
                    &case.desc,
                    a.as_slice(),
                    TypedSlice::from(b.as_slice()),
                    Output::new(&mut c),
                    &mut scratch,
                    None,
                );
                assert_eq!(c, case.run(isa, &pool), "{isa} {:?}", case.desc);
            }
        }
    }
}
