//! Pooling, row-wise, layout, index and random kernels against the reference, on every instruction set of the machine.

use bessemer_cpu::gemm::Ctx;
use bessemer_cpu::index::{self, IndexOutOfRange, ScatterDesc};
use bessemer_cpu::isa::Isa;
use bessemer_cpu::layout::{self, StridedCopy};
use bessemer_cpu::pool2d::{self, PoolDesc};
use bessemer_cpu::random::{self, Stream};
use bessemer_cpu::rowwise;
use bessemer_cpu::threads::ThreadPool;
use bessemer_cpu::top_k::{TopKDesc, top_k};
use bessemer_ir::ops::index::{ArgMax, Gather, IndexGeometry, ScatterAdd, TopK};
use bessemer_ir::ops::layout::{Broadcast, Concat, Pad, Slice, Transpose};
use bessemer_ir::ops::pool::{AvgPool2d, AvgPool2dGrad, MaxPool2d, MaxPool2dGrad};
use bessemer_ir::ops::reduce::{Reduce, ReduceKind};
use bessemer_ir::ops::{Op, OpRule};
use bessemer_ir::reference::Tensor;
use bessemer_ir::{DType, TensorType, philox};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.next() >> 40) as f32 / (1 << 22) as f32 - 2.0).collect()
    }

    /// Numbers with many ties.
    fn coarse(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.below(5) as f32).collect()
    }
}

fn tensor(dims: &[usize], data: &[f32]) -> Tensor {
    Tensor::new(TensorType::f32(dims), data.iter().map(|&x| f64::from(x)).collect())
}

fn indices(dims: &[usize], data: &[i32]) -> Tensor {
    Tensor::new(TensorType::new(DType::I32, dims), data.iter().map(|&x| f64::from(x)).collect())
}

fn reference(op: impl Into<Op>, inputs: &[&Tensor]) -> Vec<f64> {
    let op = op.into();
    let types: Vec<&TensorType> = inputs.iter().map(|t| &t.ty).collect();
    let outputs = op.rule().infer(&types).unwrap_or_else(|error| panic!("{op}: {error}"));
    op.rule().evaluate(inputs, &outputs).remove(0).data
}

/// Runs `f` on every instruction set with one thread and two; the results must be equal bit for bit.
fn on_all(len: usize, f: impl Fn(Ctx<'_>, &mut [f32])) -> Vec<f32> {
    let mut first: Option<Vec<f32>> = None;
    for isa in Isa::available() {
        for threads in [1, 2] {
            let pool = ThreadPool::new(threads);
            let mut out = vec![f32::NAN; len];
            f(Ctx::alone(isa, &pool), &mut out);
            let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            match &first {
                None => first = Some(out),
                Some(first) => assert!(bits(first) == bits(&out), "{isa} with {threads} threads gives other bits"),
            }
        }
    }
    first.expect("a machine has an instruction set")
}

/// `tolerance` is relative to the larger of 1 and the expected number.
fn assert_close(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let close = (f64::from(g) - w).abs() <= tolerance * w.abs().max(1.0) || (g.is_nan() && w.is_nan());
        assert!(close || f64::from(g) == w, "{what}, element {i}: {g} instead of {w}");
    }
}

struct Pooling {
    desc: PoolDesc,
    max: MaxPool2d,
}

fn random_pooling(random: &mut Random) -> Pooling {
    loop {
        let window = [1 + random.below(3), 1 + random.below(3)];
        let stride = [1 + random.below(3), 1 + random.below(3)];
        let pad = window.map(|w| [random.below(w), random.below(w)]);
        let (n, h, w) = (1 + random.below(3), 1 + random.below(30), 1 + random.below(12));
        let c = [1, 3, 16, 64, 70, 130][random.below(6)];
        let max = MaxPool2d { window, stride, pad };
        let Ok(geometry) = max.geometry(&[n, h, w, c].into()) else { continue };
        let y = geometry.y_shape();
        let desc = PoolDesc { n, h, w, c, oh: y[1], ow: y[2], window, stride, pad: [pad[0][0], pad[1][0]] };
        return Pooling { desc, max };
    }
}

/// Max pooling of 16-bit numbers gives what it gives in `f32`, and its gradient is rounded once.
#[test]
fn pooling_of_16_bits() {
    fn check<T: pool2d::Element + PartialEq + std::fmt::Debug>(zero: T) {
        let mut random = Random(21);
        for _ in 0..30 {
            let Pooling { desc: d, .. } = random_pooling(&mut random);
            let [x, dy] = [random.coarse(d.x_len()), random.floats(d.y_len())];
            let low = |v: &[f32]| v.iter().map(|&x| T::round(x)).collect::<Vec<_>>();
            let (x, dy) = (low(&x), low(&dy));
            let wide = |v: &[T]| v.iter().map(|x| x.widen()).collect::<Vec<_>>();
            for isa in Isa::available() {
                let pool = ThreadPool::new(2);
                let ctx = Ctx::alone(isa, &pool);
                let (mut y, mut expected) = (vec![zero; d.y_len()], vec![f32::NAN; d.y_len()]);
                pool2d::max_pool(ctx, &d, &x, &mut y);
                pool2d::max_pool(ctx, &d, &wide(&x), &mut expected);
                assert_eq!(y, low(&expected), "{isa} {d:?}");
                let (mut dx, mut sums) = (vec![zero; d.x_len()], vec![f32::NAN; d.sums_len(2)]);
                pool2d::max_pool_grad_16(ctx, &d, &x, &y, &dy, &mut dx, &mut sums);
                let mut expected = vec![f32::NAN; d.x_len()];
                pool2d::max_pool_grad(ctx, &d, &wide(&x), &wide(&y), &wide(&dy), &mut expected);
                assert_eq!(dx, low(&expected), "{isa} {d:?} gradient");
            }
        }
    }
    check(half::bf16::ZERO);
    check(half::f16::ZERO);
}

#[test]
fn pooling_and_gradients() {
    let mut random = Random(1);
    for _ in 0..60 {
        let Pooling { desc: d, max } = random_pooling(&mut random);
        let (x_dims, y_dims) = ([d.n, d.h, d.w, d.c], [d.n, d.oh, d.ow, d.c]);
        let (mut x, dy) = (random.coarse(d.x_len()), random.floats(d.y_len()));
        let nan = random.below(x.len());
        x[nan] = f32::NAN;
        let (x_ref, dy_ref) = (tensor(&x_dims, &x), tensor(&y_dims, &dy));

        let y = on_all(d.y_len(), |ctx, y| pool2d::max_pool(ctx, &d, &x, y));
        assert_close(&y, &reference(max, &[&x_ref]), 0.0, "max_pool");
        let y_ref = tensor(&y_dims, &y);
        let dx = on_all(d.x_len(), |ctx, dx| pool2d::max_pool_grad(ctx, &d, &x, &y, &dy, dx));
        let want = reference(MaxPool2dGrad { pool: max }, &[&x_ref, &y_ref, &dy_ref]);
        assert_close(&dx, &want, 1e-5, "max_pool_grad");

        for count_include_pad in [false, true] {
            let MaxPool2d { window, stride, pad } = max;
            let pool = AvgPool2d { window, stride, pad, count_include_pad };
            let y = on_all(d.y_len(), |ctx, y| pool2d::avg_pool(ctx, &d, count_include_pad, &x, y));
            assert_close(&y, &reference(pool, &[&x_ref]), 1e-5, "avg_pool");
            let dx = on_all(d.x_len(), |ctx, dx| pool2d::avg_pool_grad(ctx, &d, count_include_pad, &dy, dx));
            let want = reference(AvgPool2dGrad { pool, input: [d.h, d.w] }, &[&dy_ref]);
            assert_close(&dx, &want, 1e-5, "avg_pool_grad");
        }
    }
}

#[test]
fn reductions() {
    let mut random = Random(3);
    for dims in [[1, 1, 1], [3, 50, 1], [200, 10, 1], [2, 70_000, 1], [4, 30, 7], [1, 3000, 65], [3, 5, 20_000]] {
        let [outer, middle, inner] = dims;
        let mut x = random.floats(outer * middle * inner);
        for with_nan in [false, true] {
            if with_nan {
                x[middle * inner / 2] = f32::NAN;
            }
            for kind in ReduceKind::ALL {
                let want = reference(Reduce { kind, axes: vec![1], keep_dims: false }, &[&tensor(&dims, &x)]);
                let got = on_all(outer * inner, |ctx, out| {
                    let mut scratch = vec![0.0; rowwise::reduce_scratch_len(dims)];
                    rowwise::reduce(ctx, kind, dims, &x, out, &mut scratch);
                });
                let tolerance = if kind == ReduceKind::Sum { 1e-6 * (middle as f64).sqrt() } else { 0.0 };
                assert_close(&got, &want, tolerance, &format!("{kind:?} of {dims:?}"));
            }
        }
    }
}

#[test]
fn position_of_the_maximum() {
    let mut random = Random(4);
    for (rows, cols) in [(1, 1), (50, 10), (3, 1000), (2, 40_000)] {
        let mut x = random.coarse(rows * cols);
        for with_nan in [false, true] {
            if with_nan {
                x[cols / 2] = f32::NAN;
            }
            let want = reference(ArgMax, &[&tensor(&[rows, cols], &x)]);
            let got = on_all(rows, |ctx, out| {
                let mut positions = vec![-1; rows];
                rowwise::arg_max(ctx, &x, cols, &mut positions);
                out.iter_mut().zip(positions).for_each(|(o, p)| *o = p as f32);
            });
            assert_close(&got, &want, 0.0, "arg_max");
        }
    }
}

/// Runs a copy on elements of 1, 2, 4 and 8 bytes that hold their position modulo 251.
fn assert_copies(make: &dyn Fn(usize) -> StridedCopy, source_len: usize, want: &[f64], what: &str) {
    for element in [1, 2, 4, 8] {
        for threads in [1, 2] {
            let pool = ThreadPool::new(threads);
            let mut src = vec![0u64; source_len];
            let bytes = |i: usize| (i % 251) as u8;
            // SAFETY: the words have room for elements of up to eight bytes.
            let view = unsafe { std::slice::from_raw_parts_mut(src.as_mut_ptr().cast::<u8>(), source_len * element) };
            (0..source_len).for_each(|i| view[i * element] = bytes(i));
            let mut dst = vec![0u64; want.len()];
            let copy = make(element);
            // SAFETY: both sides have the elements of the copy.
            unsafe {
                copy.run(Ctx::alone(Isa::Portable, &pool), src.as_ptr().cast(), dst.as_mut_ptr().cast());
            }
            // SAFETY: as above.
            let view = unsafe { std::slice::from_raw_parts(dst.as_ptr().cast::<u8>(), want.len() * element) };
            for (i, &w) in want.iter().enumerate() {
                assert_eq!(f64::from(view[i * element]), w, "{what} of {element} bytes, element {i}");
            }
        }
    }
}

fn counted(dims: &[usize]) -> Tensor {
    Tensor::from_fn(TensorType::f32(dims), |i| (i % 251) as f64)
}

#[test]
fn layout_copies() {
    for (dims, perm) in [
        (vec![300, 200], vec![1, 0]),
        (vec![2, 3, 5, 7], vec![3, 1, 0, 2]),
        (vec![2, 17, 33, 4], vec![0, 2, 1, 3]),
        (vec![2, 40, 50, 3], vec![0, 3, 1, 2]),
        (vec![6], vec![0]),
        (vec![1, 5, 1, 70_000], vec![2, 3, 1, 0]),
    ] {
        let x = counted(&dims);
        let want = reference(Transpose { perm: perm.clone() }, &[&x]);
        let what = format!("transpose {dims:?} by {perm:?}");
        assert_copies(&|e| StridedCopy::transpose(e, &dims, &perm), x.data.len(), &want, &what);
    }
    for (dims, start, stop, step) in [
        (vec![20, 30], vec![3, 1], vec![17, 30], vec![2, 3]),
        (vec![4, 5, 6], vec![1, 0, 2], vec![3, 5, 6], vec![1, 1, 1]),
        (vec![50_000], vec![7], vec![49_000], vec![1]),
    ] {
        let x = counted(&dims);
        let slice = Slice { start: start.clone(), stop: stop.clone(), step: step.clone() };
        let want = reference(slice, &[&x]);
        assert_copies(&|e| StridedCopy::slice(e, &dims, &start, &stop, &step), x.data.len(), &want, "slice");
    }
    for (dims, low, high, interior) in
        [(vec![4, 5], vec![1, 2], vec![0, 3], vec![2, 0]), (vec![3, 4, 5], vec![0, 1, 0], vec![2, 0, 0], vec![0, 1, 3])]
    {
        let x = counted(&dims);
        let pad = Pad { low: low.clone(), high: high.clone(), interior: interior.clone() };
        let out = pad.infer_shape(&dims);
        let want = reference(pad, &[&x]);
        assert_copies(&|e| StridedCopy::pad(e, &dims, &low, &interior, &out), x.data.len(), &want, "pad");
    }
    for (dims, out) in
        [(vec![1, 6], vec![4, 6]), (vec![5, 1], vec![3, 5, 7]), (vec![], vec![2, 3]), (vec![3, 1, 2], vec![3, 4, 2])]
    {
        let x = counted(&dims);
        let want = reference(Broadcast { shape: out.clone().into() }, &[&x]);
        assert_copies(&|e| StridedCopy::broadcast(e, &dims, &out), x.data.len(), &want, "broadcast");
    }
}

trait PadShape {
    fn infer_shape(&self, dims: &[usize]) -> Vec<usize>;
}

impl PadShape for Pad {
    fn infer_shape(&self, dims: &[usize]) -> Vec<usize> {
        let along = |a: usize| self.low[a] + dims[a] + (dims[a] - 1) * self.interior[a] + self.high[a];
        (0..dims.len()).map(along).collect()
    }
}

#[test]
fn concatenation() {
    let mut random = Random(6);
    for axis in 0..3 {
        let sizes = [2, 5, 1];
        let parts: Vec<(Vec<usize>, Vec<f32>)> = sizes
            .iter()
            .map(|&size| {
                let mut dims = vec![3, 4, 6];
                dims[axis] = size;
                let data = random.floats(dims.iter().product());
                (dims, data)
            })
            .collect();
        let tensors: Vec<Tensor> = parts.iter().map(|(dims, data)| tensor(dims, data)).collect();
        let want = reference(Concat { axis }, &tensors.iter().collect::<Vec<_>>());
        let got = on_all(want.len(), |ctx, out| {
            let mut start = 0;
            for (dims, data) in &parts {
                let copy = StridedCopy::concat(4, dims, axis, start, sizes.iter().sum());
                // SAFETY: both sides have the elements of the copy.
                unsafe { copy.run(ctx, data.as_ptr().cast(), out.as_mut_ptr().cast()) };
                start += dims[axis];
            }
        });
        assert_close(&got, &want, 0.0, "concat");
    }
}

#[test]
fn conversions() {
    let values: Vec<f32> = vec![0.0, 1.0, -1.0, 2.75, -2.75, 300.0, 1e9, f32::NAN, 65_520.0, 1.001];
    let pool = ThreadPool::new(2);
    for isa in Isa::available() {
        let ctx = Ctx::alone(isa, &pool);
        let convert_f32 = |to: DType| {
            let mut out = vec![0u64; values.len()];
            // SAFETY: both sides have room for the values.
            unsafe {
                layout::convert(ctx, values.len(), DType::F32, values.as_ptr().cast(), to, out.as_mut_ptr().cast());
            }
            let mut back = vec![0.0f32; values.len()];
            // SAFETY: as above.
            unsafe {
                layout::convert(ctx, values.len(), to, out.as_ptr().cast(), DType::F32, back.as_mut_ptr().cast());
            }
            back
        };
        assert_eq!(convert_f32(DType::I32), [0.0, 1.0, -1.0, 2.0, -2.0, 300.0, 1e9, 0.0, 65_520.0, 1.0]);
        assert_eq!(convert_f32(DType::U8), [0.0, 1.0, 0.0, 2.0, 0.0, 255.0, 255.0, 0.0, 255.0, 1.0]);
        assert_eq!(convert_f32(DType::Bool), [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let bf16: Vec<f32> = values.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect();
        let f16: Vec<f32> = values.iter().map(|&x| half::f16::from_f32(x).to_f32()).collect();
        for (to, want) in [(DType::Bf16, bf16), (DType::F16, f16)] {
            for (got, want) in convert_f32(to).iter().zip(want) {
                assert!(*got == want || (got.is_nan() && want.is_nan()), "{to}: {got} instead of {want}");
            }
        }
    }
}

/// Every `f16`, and numbers around the borders between them, convert as the definition says.
#[test]
fn half_precision_is_exact() {
    use bessemer_cpu::vector::cast;
    for bits in 0..=u16::MAX {
        let exact = half::f16::from_bits(bits).to_f32();
        let next = half::f16::from_bits(bits.wrapping_add(1)).to_f32();
        let middle = (exact + next) / 2.0;
        for x in [exact, middle, f32::from_bits(middle.to_bits().wrapping_add(1)), middle * 1.01] {
            for (to, want) in
                [(DType::F16, half::f16::from_f32(x).to_f32()), (DType::Bf16, half::bf16::from_f32(x).to_f32())]
            {
                let got = cast(to, x);
                assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{to} of {x}: {got}");
            }
        }
    }
}

#[test]
fn rows_by_index() {
    let mut random = Random(7);
    for (rows, width, count) in [(1, 1, 1), (30, 7, 50), (1000, 64, 300), (5, 3000, 20)] {
        let table = random.floats(rows * width);
        let updates = random.floats(count * width);
        let chosen: Vec<i32> = (0..count).map(|_| random.below(rows) as i32).collect();
        let chosen_ref = indices(&[count], &chosen);
        let got = on_all(count * width, |ctx, out| {
            let geometry = rows_of(rows, width, count);
            index::gather(ctx, &geometry, bytes(&table), 4 * width, &chosen, bytes_mut(out)).unwrap();
        });
        assert_close(&got, &reference(Gather::ROWS, &[&tensor(&[rows, width], &table), &chosen_ref]), 0.0, "gather");
        let got = on_all(rows * width, |ctx, out| scatter(ctx, width, &updates, &chosen, out).unwrap());
        let want = reference(ScatterAdd::to_rows(rows), &[&tensor(&[count, width], &updates), &chosen_ref]);
        assert_close(&got, &want, 1e-5, "scatter_add");
    }
}

/// Long rows whose largest elements lie side by side, so that bounds from parts of a row are poor, and that differ in ever
/// lower bits.
#[test]
fn largest_elements_of_long_rows() {
    const N: usize = 200_000;
    let patterns: [fn(usize) -> f32; 4] = [
        |i| i as f32,
        |i| 1.0 + (i / 64) as f32 * f32::EPSILON,
        |i| -1.0 - (N - i) as f32 / (1 << 20) as f32,
        |i| if i % 3 == 0 { f32::NAN } else { (i / 1000 % 7) as f32 - 3.0 },
    ];
    for (number, pattern) in patterns.into_iter().enumerate() {
        let x: Vec<f32> = (0..N).map(pattern).collect();
        for k in [1, 1000, 30_000] {
            let desc = TopKDesc { rows: 1, sizes: [1, N], k };
            let got = on_all(2 * k, |ctx, out| {
                let mut positions = vec![0; k];
                let mut scratch = vec![0u64; desc.scratch_len(ctx.pool.threads()).div_ceil(2)];
                let (values, places) = out.split_at_mut(k);
                top_k(ctx, &desc, &x, values, [&mut [], &mut positions], bytemuck::cast_slice_mut(&mut scratch));
                places.iter_mut().zip(positions).for_each(|(place, position)| *place = position as f32);
            });
            let want = TopK { k, axes: 1 };
            let types = [&TensorType::f32([N])];
            let want = want.evaluate(&[&tensor(&[N], &x)], &want.infer(&types).expect("legal"));
            assert_close(&got[..k], &want[0].data, 0.0, &format!("values of pattern {number}, k {k}"));
            assert_close(&got[k..], &want[1].data, 0.0, &format!("positions of pattern {number}, k {k}"));
        }
    }
}

/// Of one table.
fn rows_of(rows: usize, width: usize, items: usize) -> IndexGeometry {
    IndexGeometry { batches: 1, outer: 1, rows, items, width }
}

/// A scatter-add of rows of `width` elements, with scratch that holds NaN before.
fn scatter(
    ctx: Ctx<'_>,
    width: usize,
    updates: &[f32],
    indices: &[i32],
    out: &mut [f32],
) -> Result<(), IndexOutOfRange> {
    let desc = ScatterDesc(rows_of(out.len() / width, width, indices.len()));
    let mut scratch = vec![f32::NAN; desc.scratch_len()];
    index::scatter_add(ctx, &desc, updates, indices, out, &mut scratch)
}

/// Updates of one row are added in the order of their indices, so that the sums have the bits of a plain loop.
#[test]
fn scatter_add_of_repeated_indices_has_the_bits_of_a_plain_loop() {
    let mut random = Random(8);
    for (rows, width, count, distinct) in [
        (1, 1, 50, 1),
        (3, 700, 200, 2),
        (5000, 16, 3000, 40),
        (5000, 16, 3000, 5000),
        (40_000, 3, 500, 7),
        (9, 4, 0, 1),
    ] {
        let updates = random.floats(count * width);
        // Few rows, far apart, each of them many times.
        let indices: Vec<i32> = (0..count).map(|_| (random.below(distinct) * (rows / distinct)) as i32).collect();
        let mut expected = vec![0.0f32; rows * width];
        for (i, &index) in indices.iter().enumerate() {
            let row = &mut expected[index as usize * width..][..width];
            row.iter_mut().zip(&updates[i * width..]).for_each(|(x, u)| *x += u);
        }
        let got = on_all(rows * width, |ctx, out| scatter(ctx, width, &updates, &indices, out).unwrap());
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(&got) == bits(&expected), "{count} indices, {distinct} of {rows} rows of {width}");
    }
}

fn bytes(x: &[f32]) -> &[u8] {
    // SAFETY: any bytes are bytes.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), x.len() * 4) }
}

fn bytes_mut(x: &mut [f32]) -> &mut [u8] {
    // SAFETY: any bytes are floats.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), x.len() * 4) }
}

#[test]
fn indices_outside_are_errors() {
    let pool = ThreadPool::new(1);
    let ctx = Ctx::alone(Isa::Portable, &pool);
    let mut out = vec![0.0; 6];
    let error =
        index::gather(ctx, &rows_of(4, 2, 3), bytes(&[0.0; 8]), 8, &[0, 3, 4], bytes_mut(&mut out)).unwrap_err();
    assert_eq!(error, IndexOutOfRange { position: 2, index: 4, limit: 4 });
    let error = scatter(ctx, 2, &[1.0; 4], &[-1, 0], &mut out).unwrap_err();
    assert_eq!(error, IndexOutOfRange { position: 0, index: -1, limit: 3 });
    assert_eq!(error.to_string(), "index -1 at position 0 is not in 0..3");
}

#[test]
fn normal_random_numbers_equal_the_definition() {
    let stream = Stream { seed: 0x1234_5678_9ABC_DEF0, step: 7, stream: 3 };
    for len in [1, 3, 64, 1001, 40_000] {
        let normal = on_all(len, |ctx, out| random::normal(ctx, stream, out));
        for (i, x) in normal.iter().enumerate() {
            assert_eq!(x.to_bits(), philox::normal(stream.seed, 7, 3, i as u64).to_bits(), "element {i}");
        }
    }
}
