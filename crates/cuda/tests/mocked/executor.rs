//! Plans on the mock of a GPU: results and errors of single operations, state and memory.

use crate::common::{Knobs, mock_or_skip};
use crate::device::{agrees, agrees_within, bytes, f32s, gpu, load, open, options};
use bessemer_cuda::{CudaDevice, CudaOptions, CudaTarget, LoweringError, OutOfMemory, Unsupported};
use bessemer_ir::ops::conv::{Conv2d, Conv2dDataGrad, Conv2dWeightGrad, same_padding};
use bessemer_ir::ops::conv_with_prologue::ConvWithPrologue;
use bessemer_ir::ops::detection::masks::MaskTargets;
use bessemer_ir::ops::fusion::{Fusion, FusionOutput};
use bessemer_ir::ops::index::{ArgMax, Gather, ScatterAdd};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::UnaryKind;
use bessemer_ir::ops::pool::{MaxPool2d, MaxPool2dGrad};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::passes::{CompileOptions, compile, run_passes};
use bessemer_ir::plan::NullTarget;
use bessemer_ir::reference::Interpreter;
use bessemer_ir::run::{
    Device, Executor, HALT, Phase, RunError, StateBinding, StateLayout, Ticket, read_f32, write_f32,
};
use bessemer_ir::{DType, Graph, GraphError, Op, Role, TensorType, philox};
use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

const PLAIN: Matmul = Matmul { trans_a: false, trans_b: false };

/// Padding that differs before and behind: forward and both gradients, with stride and dilation, of operands of 16 bits too, whose
/// results are of 16 bits and are wanted as `f32`.
#[test]
fn convolutions_with_uneven_padding() {
    let Some(folder) = mock_or_skip("convolutions_with_uneven_padding") else { return };
    let gpu = gpu(folder);
    let types = [(DType::F32, 2e-5), (DType::F16, 3e-3), (DType::Bf16, 2e-2)];
    for ((groups, dilation), (ty, allowed)) in
        [(1, 1), (1, 2), (4, 1)].into_iter().flat_map(|way| types.map(|ty| (way, ty)))
    {
        let pad = [same_padding(9, 3, 2, dilation), [1, 2]];
        let conv = Conv2d { dilation: [dilation; 2], groups, ..Conv2d::new([2, 1], pad) };
        let mut g = Graph::new();
        let (x, w) = (f32s(&mut g, "x", &[2, 9, 7, 8]), f32s(&mut g, "w", &[3, 3, 8 / groups, 12]));
        let geometry = conv.geometry(g.shape(x), g.shape(w)).unwrap();
        let dy_shape = geometry.y_shape().dims().to_vec();
        let dy = f32s(&mut g, "dy", &dy_shape);
        let [x, w, dy] = [x, w, dy].map(|v| g.cast(v, ty).unwrap());
        let y = g.push1(Op::from(conv), &[x, w]).unwrap();
        let dx = g.push1(Op::from(Conv2dDataGrad { conv, input: [9, 7] }), &[dy, w]).unwrap();
        let dw = g.push1(Op::from(Conv2dWeightGrad::new(conv, [3, 3])), &[x, dy]).unwrap();
        for (name, value) in [("y", y), ("dx", dx), ("dw", dw)] {
            g.output(name, value);
        }
        agrees_within(&gpu, &g, allowed);
    }
}

#[test]
fn a_prologue_is_a_region_before_the_convolution() {
    let Some(folder) = mock_or_skip("a_prologue_is_a_region_before_the_convolution") else { return };
    let mut g = Graph::new();
    let (x, w) = (f32s(&mut g, "x", &[2, 5, 5, 16]), f32s(&mut g, "w", &[3, 3, 16, 8]));
    let (scale, shift) = (f32s(&mut g, "scale", &[16]), f32s(&mut g, "shift", &[16]));
    let by_image = f32s(&mut g, "scales by image", &[2, 1, 1, 16]);
    let conv = Conv2d::new([1, 1], [[1, 1], [1, 1]]);
    let dy = f32s(&mut g, "dy", &[2, 5, 5, 8]);
    let products = [(Op::from(conv), w), (Op::from(Conv2dWeightGrad::new(conv, [3, 3])), dy)];
    for (name, (op, second)) in ["y", "dw"].into_iter().zip(products) {
        for relu in [true, false] {
            for (scales, scale) in [("for all", scale), ("by image", by_image)] {
                let op = ConvWithPrologue { op: Box::new(op.clone()), relu };
                let value = g.push1(op, &[x, second, scale, shift]).unwrap();
                g.output(&format!("{name}, relu {relu}, scales {scales}"), value);
            }
        }
    }
    agrees(&gpu(folder), &g);
}

/// Windows that overlap, with several largest elements: the first one of each takes the gradient.
#[test]
fn the_first_of_equal_maxima_takes_the_gradient() {
    let Some(folder) = mock_or_skip("the_first_of_equal_maxima_takes_the_gradient") else { return };
    let mut g = Graph::new();
    let x = f32s(&mut g, "x", &[2, 7, 6, 3]);
    // Of normal numbers: -2 to 2.
    let whole = g.unary(UnaryKind::Floor, x).unwrap();
    let pool = MaxPool2d { window: [3, 3], stride: [2, 1], pad: [[1, 1], [0, 1]] };
    let y = g.push1(Op::from(pool), &[whole]).unwrap();
    let dy_shape = g.shape(y).dims().to_vec();
    let dy = f32s(&mut g, "dy", &dy_shape);
    let dx = g.push1(Op::from(MaxPool2dGrad { pool }), &[whole, y, dy]).unwrap();
    g.output("y", y);
    g.output("dx", dx);
    agrees(&gpu(folder), &g);
}

/// Rows that do not fit into the registers of a block, of which sums are taken along both axes.
#[test]
fn long_rows_are_reduced_and_summed_in_two_kernels() {
    let Some(folder) = mock_or_skip("long_rows_are_reduced_and_summed_in_two_kernels") else { return };
    let mut g = Graph::new();
    let x = f32s(&mut g, "x", &[3, 20_000]);
    let largest = g.reduce(ReduceKind::Max, x, &[1], true).unwrap();
    let less = g.sub(x, largest).unwrap();
    let e = g.unary(UnaryKind::Exp, less).unwrap();
    let total = g.reduce(ReduceKind::Sum, e, &[1], true).unwrap();
    let p = g.div(e, total).unwrap();
    let by_column = g.sum(p, &[0]).unwrap();
    for (name, value) in [("p", p), ("by_column", by_column), ("total", total)] {
        g.output(name, value);
    }
    let passes = run_passes(&g, &CudaTarget::RULES, &CompileOptions::default(), None).unwrap();
    let fusions = passes.nodes().iter().filter(|node| node.op.as_fusion().is_some()).count();
    assert_eq!(fusions, 1, "the case is no single fusion");
    agrees(&gpu(folder), &g);
}

/// As for the loss of a batch of one: what a row has of its own is what all rows share.
#[test]
fn one_row_is_reduced_and_summed() {
    let Some(folder) = mock_or_skip("one_row_is_reduced_and_summed") else { return };
    let mut g = Graph::new();
    let (x, bias) = (f32s(&mut g, "x", &[1, 6]), f32s(&mut g, "bias", &[6]));
    let scores = g.add(x, bias).unwrap();
    let p = g.softmax(scores).unwrap();
    let by_column = g.sum(p, &[0]).unwrap();
    for (name, value) in [("p", p), ("by_column", by_column)] {
        g.output(name, value);
    }
    let passes = run_passes(&g, &CudaTarget::RULES, &CompileOptions::default(), None).unwrap();
    let sums = |fusion: &Fusion| fusion.outputs.iter().any(|output| matches!(output, FusionOutput::Sum { .. }));
    let mut fusions = passes.nodes().iter().filter_map(|node| node.op.as_fusion());
    assert!(fusions.any(|fusion| fusion.is_rowwise() && sums(fusion)), "no fusion does both");
    agrees(&gpu(folder), &g);
}

fn embedding() -> Graph {
    let mut g = Graph::new();
    let table = f32s(&mut g, "table", &[4, 2]);
    let rows = g.input("rows", Role::Feed, TensorType::new(DType::I32, [3])).unwrap();
    let y = g.scoped("embedding", |g| g.push1(Gather::ROWS, &[table, rows])).unwrap();
    g.output("y", y);
    g
}

#[test]
fn an_index_out_of_range_names_the_operation_and_the_first_index() {
    let Some(folder) = mock_or_skip("an_index_out_of_range_names_the_operation_and_the_first_index") else { return };
    let gpu = gpu(folder);
    let mut executor = load(&gpu, &embedding());
    let rows = |rows: [i32; 3]| rows.map(i32::to_ne_bytes).concat();
    executor.feed(&[("rows", &rows([1, 4, -1]))]).unwrap();
    let message = executor.run().unwrap_err().to_string();
    assert_eq!(message, "gather at `embedding`: index 4 at position 1 is not in 0..4");
    executor.feed(&[("rows", &rows([-7, 4, 0]))]).unwrap();
    let message = executor.run().unwrap_err().to_string();
    assert_eq!(message, "gather at `embedding`: index -7 at position 0 is not in 0..4");
    let table: Vec<f32> = (0..8).map(|i| i as f32).collect();
    executor.feed(&[("rows", &rows([3, 0, 1])), ("table", &bytes(&table))]).unwrap();
    executor.run().unwrap();
    assert_eq!(executor.output_f32("y").unwrap(), [6.0, 7.0, 0.0, 1.0, 2.0, 3.0]);
}

/// With few indices, which are not sorted, and with more.
#[test]
fn indices_of_scatter_add_are_checked() {
    let Some(folder) = mock_or_skip("indices_of_scatter_add_are_checked") else { return };
    let gpu = gpu(folder);
    for items in [20, 70] {
        let mut g = Graph::new();
        let updates = f32s(&mut g, "updates", &[items, 3]);
        let rows = g.input("rows", Role::Feed, TensorType::new(DType::I32, [items])).unwrap();
        let y = g.scoped("table", |g| g.push1(ScatterAdd::to_rows(4), &[updates, rows])).unwrap();
        g.output("y", y);
        let mut executor = load(&gpu, &g);
        let mut run = |bad: &[(usize, i32)]| {
            let mut rows: Vec<i32> = (0..items as i32).map(|i| i * i % 4).collect();
            bad.iter().for_each(|&(at, index)| rows[at] = index);
            let rows: Vec<u8> = rows.iter().flat_map(|row| row.to_ne_bytes()).collect();
            executor.feed(&[("rows", &rows), ("updates", &bytes(&vec![1.0; items * 3]))]).unwrap();
            let message = executor.run().err().map(|error| error.to_string());
            (message, executor.output_f32("y").unwrap().to_vec())
        };
        let of = |problem: &str| Some(format!("scatter_add(rows=4) at `table`: {problem}"));
        let half = items as f32 / 2.0;
        let expected: Vec<f32> = [half, half, 0.0, 0.0].iter().flat_map(|&x| [x; 3]).collect();
        assert_eq!(run(&[]), (None, expected.clone()), "{items}");
        assert_eq!(run(&[(12, 4), (5, -3)]).0, of("index -3 at position 5 is not in 0..4"), "{items}");
        assert_eq!(
            run(&[(items - 1, 1 << 30)]).0,
            of(&format!("index {} at position {} is not in 0..4", 1 << 30, items - 1))
        );
        assert_eq!(run(&[]), (None, expected), "{items}");
    }
}

/// An operation of two kinds of indices, images and ground truths.
#[test]
fn each_kind_of_index_is_checked() {
    let Some(folder) = mock_or_skip("each_kind_of_index_is_checked") else { return };
    let mut g = Graph::new();
    let crops = g.input("crops", Role::Feed, TensorType::new(DType::U8, [2, 3, 4, 4])).unwrap();
    let (truths, regions) = (f32s(&mut g, "truths", &[2, 3, 4]), f32s(&mut g, "regions", &[4, 4]));
    let [images, numbers] = ["images", "numbers"].map(|name| {
        let ty = TensorType::new(DType::I32, [4]);
        g.input(name, Role::Feed, ty).unwrap()
    });
    let op = MaskTargets { size: 2, border: 1, threshold: None };
    let inputs = [crops, truths, regions, images, numbers];
    let masks = g.scoped("masks", |g| g.push1(op, &inputs)).unwrap();
    g.output("y", masks);
    let gpu = gpu(folder);
    let mut executor = load(&gpu, &g);
    let mut run = |images: [i32; 4], numbers: [i32; 4]| {
        let [images, numbers] = [images, numbers].map(|indices| indices.map(i32::to_ne_bytes).concat());
        executor.feed(&[("images", &images), ("numbers", &numbers)]).unwrap();
        executor.run().err().map(|error| error.to_string())
    };
    let of = |problem: &str| Some(format!("mask_targets(size=2, border=1) at `masks`: {problem}"));
    assert_eq!(run([0, 1, 0, 1], [-1, 2, 0, 1]), None);
    assert_eq!(run([0, 2, 0, -1], [3, 0, 0, 0]), of("index 2 at position 1 is not in 0..2"));
    assert_eq!(run([0, 1, 0, 1], [-1, 2, 4, 3]), of("index 4 at position 2 is not in 0..3"));
    assert_eq!(run([0, 1, 0, 1], [-1, 2, 0, 1]), None);
}

/// `n` grows by the sum of the rows that are chosen; `twice` becomes twice that, in one kernel with it; `copied`, whose new content is no fusion, becomes them.
fn growth() -> Graph {
    let mut g = Graph::new();
    let n = g.input("n", Role::State, TensorType::f32([])).unwrap();
    let copied = g.input("copied", Role::State, TensorType::f32([3, 2])).unwrap();
    let table = g.input("table", Role::Parameter, TensorType::f32([4, 2])).unwrap();
    let rows = g.input("rows", Role::Feed, TensorType::new(DType::I32, [3])).unwrap();
    let halt = f32s(&mut g, HALT, &[]);
    let chosen = g.scoped("embedding", |g| g.push1(Gather::ROWS, &[table, rows])).unwrap();
    let sum = g.sum(chosen, &[0, 1]).unwrap();
    let next = g.add(n, sum).unwrap();
    g.update(n, next).unwrap();
    let twice = g.input("twice", Role::State, TensorType::f32([])).unwrap();
    let doubled = g.mul_scalar(next, 2.0).unwrap();
    g.update(twice, doubled).unwrap();
    g.update(copied, chosen).unwrap();
    g.output("n", next);
    let halt = g.mul_scalar(halt, 2.0).unwrap();
    g.output(HALT, halt);
    g
}

/// Behind a step that met an index out of range, or that said so itself, those that are queued change nothing.
#[test]
fn steps_behind_one_that_failed_replace_no_state() {
    let Some(folder) = mock_or_skip("steps_behind_one_that_failed_replace_no_state") else { return };
    for (eager, halts) in [(false, false), (false, true), (true, false), (true, true)] {
        let gpu = open(folder, eager).unwrap();
        let plan = compile(&growth(), &CudaTarget, &CompileOptions::default()).unwrap();
        let state = gpu.new_state(StateLayout::of_plan(&plan)).unwrap();
        write_f32(&*state, "table", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
        let mut executor = gpu.load(plan, &state, &StateBinding::default()).unwrap();
        let submit = |executor: &mut dyn Executor, last: i32, halt: f32| {
            let rows = [0, 1, last].map(i32::to_ne_bytes).concat();
            executor.feed(&[("rows", &rows), (HALT, &bytes(&[halt]))]).unwrap();
            executor.submit().unwrap()
        };
        let content = || {
            let [n, twice, copied] = ["n", "twice", "copied"].map(|name| read_f32(&*state, name).unwrap());
            assert_eq!(twice[0], 2.0 * n[0]);
            (n[0], copied[4])
        };
        // Each round has two good steps, one that fails, and one behind it. A first step is launched, a second one recorded.
        let (mut n, mut steps) = (0.0, 0);
        for good in [0, 1, 2, 2] {
            let mut tickets: Vec<Ticket> = (0..good).map(|_| submit(&mut *executor, 2, 0.0)).collect();
            tickets.push(if halts { submit(&mut *executor, 3, 1.0) } else { submit(&mut *executor, 4, 0.0) });
            tickets.push(submit(&mut *executor, 3, 0.0));
            n += 21.0 * good as f32 + if halts { 25.0 } else { 0.0 };
            let copied = if halts {
                7.0
            } else if steps + good == 0 {
                0.0
            } else {
                5.0
            };
            assert_eq!(content(), (n, copied), "eager {eager}, halts {halts}, behind {good}");
            let failed = tickets[good].0;
            for (number, &ticket) in tickets.iter().enumerate() {
                let outcome = executor.collect(ticket);
                match number.cmp(&good) {
                    Ordering::Less => assert!(outcome.is_ok()),
                    Ordering::Equal if halts => assert_eq!(outcome.unwrap().scalar("n").unwrap(), n),
                    Ordering::Equal => {
                        let message = outcome.unwrap_err().to_string();
                        assert_eq!(message, "gather at `embedding`: index 4 at position 2 is not in 0..4");
                    }
                    Ordering::Greater => {
                        let expected = RunError::Halted { step: failed + 1, failed };
                        assert_eq!(outcome.unwrap_err().to_string(), expected.to_string());
                    }
                }
            }
            steps += good + 2;
        }
        // One that is submitted before the others behind the failure were collected is not behind it any more.
        let bad = if halts { submit(&mut *executor, 3, 1.0) } else { submit(&mut *executor, 4, 0.0) };
        let behind = submit(&mut *executor, 3, 0.0);
        assert_eq!(executor.collect(bad).is_ok(), halts);
        let later = submit(&mut *executor, 0, 0.0);
        assert!(matches!(executor.collect(behind).unwrap_err(), RunError::Halted { .. }));
        n += 13.0 + if halts { 25.0 } else { 0.0 };
        assert_eq!(executor.collect(later).unwrap().scalar("n").unwrap(), n);
        assert_eq!(content(), (n, 1.0));
    }
}

#[test]
fn what_has_no_kernel_is_listed() {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::new(DType::I32, [2, 6])).unwrap();
    let largest = g.scoped("head", |g| g.push1(ArgMax, &[x])).unwrap();
    g.output("y", largest);
    let error = compile(&g, &CudaTarget, &CompileOptions::default()).expect_err("there is no kernel");
    let message = error.to_string();
    let GraphError::Unsupported(unsupported) = error else { panic!("{message}") };
    let errors: Vec<&LoweringError> = unsupported.operations.iter().filter_map(|error| error.downcast_ref()).collect();
    let [LoweringError { node, inputs, reason }] = &errors[..] else { panic!("{message}") };
    let expected = Unsupported::Operands { expected: "floats", actual: DType::I32 };
    assert_eq!((node.path.as_str(), reason), ("head", &expected));
    assert_eq!(*inputs, [TensorType::new(DType::I32, [2, 6])]);
    let listed = "there are no kernels on cuda for: arg_max (1); the first is arg_max at `head` (";
    assert!(message.starts_with(listed), "{message}");
}

/// A counter `n` that grows by `x` in each step, and its square.
fn counter() -> Graph {
    let mut g = Graph::new();
    let n = g.input("n", Role::State, TensorType::f32([5])).unwrap();
    let x = f32s(&mut g, "x", &[]);
    let next = g.add(n, x).unwrap();
    g.update(n, next).unwrap();
    let total = g.sum(next, &[0]).unwrap();
    g.output("n", n);
    g.output("total", total);
    g
}

#[test]
fn state_is_shared_and_results_are_kept_for_some_steps() {
    let Some(folder) = mock_or_skip("state_is_shared_and_results_are_kept_for_some_steps") else { return };
    let gpu = gpu(folder);
    let plan = || compile(&counter(), &CudaTarget, &CompileOptions::default()).unwrap();
    let state = gpu.new_state(StateLayout::of_plan(&plan())).unwrap();
    assert_eq!(read_f32(&*state, "n").unwrap(), [0.0; 5]);
    write_f32(&*state, "n", &[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
    let mut executors = [(); 2].map(|()| gpu.load(plan(), &state, &StateBinding::default()).unwrap());
    let names: Vec<String> = gpu.memory().into_iter().map(|(what, _)| what).collect();
    assert_eq!(names.iter().filter(|name| *name == "the plan's arena").count(), 2, "{names:?}");
    let in_use: usize = gpu.memory().iter().map(|(_, bytes)| bytes).sum();
    assert!(in_use > 0 && gpu.memory_in_use() == Some(in_use as u64), "{in_use}");
    executors[0].feed(&[("x", &bytes(&[1.0]))]).unwrap();
    executors[1].feed(&[("x", &bytes(&[10.0]))]).unwrap();
    let tickets: Vec<Ticket> = (0..5).map(|_| executors[0].submit().unwrap()).collect();
    let error = executors[0].collect(tickets[0]).unwrap_err();
    assert!(matches!(error, RunError::NoSuchStep { ticket: 0, oldest: 1 }), "{error}");
    assert_eq!(executors[0].collect(tickets[1]).unwrap().scalar("total").unwrap(), 25.0);
    assert_eq!(executors[0].collect(tickets[4]).unwrap().scalar("total").unwrap(), 40.0);
    assert_eq!(executors[1].run().unwrap().scalar("total").unwrap(), 90.0);
    assert_eq!(executors[1].output_f32("n").unwrap(), [6.0, 7.0, 8.0, 9.0, 10.0], "as the step found it");
    assert_eq!(read_f32(&*state, "n").unwrap(), [16.0, 17.0, 18.0, 19.0, 20.0]);
    assert_eq!(executors[0].output_f32("n").unwrap(), [5.0, 6.0, 7.0, 8.0, 9.0]);
    executors[0].run().unwrap();
    assert_eq!(executors[0].output_f32("n").unwrap(), [16.0, 17.0, 18.0, 19.0, 20.0], "of the step that ran last");
    let error = executors[0].accumulate().unwrap_err();
    assert!(matches!(error, RunError::NoAccumulation), "{error}");
    let error = executors[0].feed(&[("y", &[])]).unwrap_err().to_string();
    assert_eq!(error, "there is no feed named `y`; there are: x");
    let error = executors[0].feed(&[("x", &[0; 8])]).unwrap_err().to_string();
    assert_eq!(error, "`x` is f32[], which is 4 bytes; 8 bytes were given");
    assert_eq!(executors[0].profile().unwrap().len(), executors[0].kernels().len());
    drop(executors);
    drop(state);
    assert_eq!(gpu.memory(), []);
}

#[test]
fn a_snapshot_has_what_the_steps_before_it_leave() {
    let Some(folder) = mock_or_skip("a_snapshot_has_what_the_steps_before_it_leave") else { return };
    let gpu = gpu(folder);
    let plan = compile(&counter(), &CudaTarget, &CompileOptions::default()).unwrap();
    let state = gpu.new_state(StateLayout::of_plan(&plan)).unwrap();
    let mut executor = gpu.load(plan, &state, &StateBinding::default()).unwrap();
    let mut snapshot = Arc::clone(&state).snapshot(&[0]).unwrap();
    write_f32(&*state, "n", &[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
    executor.feed(&[("x", &bytes(&[1.0]))]).unwrap();
    executor.submit().unwrap();
    snapshot.take().unwrap();
    executor.submit().unwrap();
    assert_eq!(executor.run().unwrap().scalar("total").unwrap(), 30.0);
    for _ in 0..2 {
        snapshot.restore().unwrap();
        assert_eq!(read_f32(&*state, "n").unwrap(), [2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(executor.run().unwrap().scalar("total").unwrap(), 25.0);
    }
}

/// The mock says that it is an H200: 67 TFLOP/s in fp32, 1,070 in bf16 and fp16 at its peak clock, 4.9 TB/s.
#[test]
fn limits_follow_from_properties() {
    let Some(folder) = mock_or_skip("limits_follow_from_properties") else { return };
    let gpu = gpu(folder);
    assert_eq!((gpu.properties().kind, gpu.properties().bf16), ("cuda", Some("tensor cores")));
    let limits = gpu.measure_limits();
    assert_eq!(limits.f16_flops, limits.bf16_flops);
    assert_eq!(limits.tf32_flops.map(|flops| flops * 2.0), limits.bf16_flops);
    let shares = [limits.fp32_flops / 67e12, limits.bf16_flops.unwrap() / 1070e12, limits.read_bytes / 4.9e12];
    assert!(shares.iter().all(|share| (share - 1.0).abs() < 0.01), "{limits:?}");
}

#[test]
fn plans_and_states_of_other_devices_are_refused() {
    let Some(folder) = mock_or_skip("plans_and_states_of_other_devices_are_refused") else { return };
    let (one, other) = (gpu(folder), gpu(folder));
    let plan = compile(&counter(), &CudaTarget, &CompileOptions::default()).unwrap();
    let state = other.new_state(StateLayout::of_plan(&plan)).unwrap();
    let error = one.load(plan, &state, &StateBinding::default()).err().unwrap();
    assert!(matches!(error, RunError::ForeignState { device: "cuda" }), "{error}");
    let plan = compile(&counter(), &NullTarget, &CompileOptions::default()).unwrap();
    let error = other.load(plan, &state, &StateBinding::default()).err().unwrap();
    assert!(matches!(error, RunError::ForeignPlan { device: "cuda" }), "{error}");
}

#[test]
fn memory_that_is_not_there_is_said_with_what_uses_the_rest() {
    let Some(folder) = mock_or_skip("memory_that_is_not_there_is_said_with_what_uses_the_rest") else { return };
    let gpu = gpu(folder);
    let plan = compile(&counter(), &CudaTarget, &CompileOptions::default()).unwrap();
    let _state = gpu.new_state(StateLayout::of_plan(&plan)).unwrap();
    let mut g = Graph::new();
    // More than the mock's 140 GiB.
    let x = g.input("x", Role::State, TensorType::f32([100, 1 << 29])).unwrap();
    g.output("x", x);
    let plan = compile(&g, &NullTarget, &CompileOptions::default()).unwrap();
    let error = gpu.new_state(StateLayout::of_plan(&plan)).err().unwrap();
    let message = error.to_string();
    assert!(message.starts_with("no memory for the state of 214748364800 bytes: cuMemAlloc failed"), "{message}");
    assert!(message.ends_with("bytes are free; in use: the state: 256"), "{message}");
    // Of all that the device has, libraries take some when they start.
    let RunError::Memory { source, .. } = &error else { panic!("{error}") };
    let found: &OutOfMemory = source.get_ref().unwrap().downcast_ref().unwrap();
    let all = 150_754_820_096 - 1_500_000_000;
    assert_eq!([0, 256, all, 2 * all].map(|in_use| found.room(in_use)), [all, all - 256, 0, 0].map(Some));
}

#[test]
fn the_first_value_that_is_not_finite_is_found() {
    let Some(folder) = mock_or_skip("the_first_value_that_is_not_finite_is_found") else { return };
    let mut g = Graph::new();
    let (x, w) = (f32s(&mut g, "x", &[2, 3]), f32s(&mut g, "w", &[3, 2]));
    let y = g.scoped("layer", |g| g.push1(PLAIN, &[x, w])).unwrap();
    let sum = g.sum(y, &[0, 1]).unwrap();
    g.output("sum", sum);
    let gpu = gpu(folder);
    let mut executor = load(&gpu, &g);
    executor.feed(&[("x", &bytes(&[1.0; 6])), ("w", &bytes(&[2.0; 6]))]).unwrap();
    assert_eq!(executor.find_non_finite(Phase::Update).unwrap(), None);
    executor.feed(&[("x", &bytes(&[3e38; 6]))]).unwrap();
    let found = executor.find_non_finite(Phase::Update).unwrap().unwrap();
    assert_eq!((found.path.as_str(), found.is_input), ("layer", false));
    assert_eq!(found.input_ranges, [(3e38, 3e38), (2.0, 2.0)]);
    executor.feed(&[("x", &bytes(&[f32::NAN; 6]))]).unwrap();
    let found = executor.find_non_finite(Phase::Update).unwrap().unwrap();
    assert_eq!((found.op.as_str(), found.is_input), ("x", true));
}

/// A bit of everything: a convolution with statistics, a product with softmax, rows chosen by index, state.
fn everything() -> Graph {
    let mut g = Graph::new();
    let (x, w) = (f32s(&mut g, "x", &[2, 6, 6, 4]), f32s(&mut g, "w", &[3, 3, 4, 8]));
    let y = g.push1(Op::from(Conv2d::new([1, 1], [[1, 1], [1, 1]])), &[x, w]).unwrap();
    let mean = g.sum(y, &[0, 1, 2]).unwrap();
    let y = g.sub(y, mean).unwrap();
    let rows = g.reshape(y, [72, 8]).unwrap();
    let v = g.input("v", Role::Parameter, TensorType::f32([8, 40])).unwrap();
    let scores = g.push1(PLAIN, &[rows, v]).unwrap();
    let p = g.softmax(scores).unwrap();
    let indices = g.input("indices", Role::Feed, TensorType::new(DType::I32, [5])).unwrap();
    let chosen = g.push1(Gather::ROWS, &[p, indices]).unwrap();
    let loss = g.sum(chosen, &[0, 1]).unwrap();
    let shrunk = g.mul_scalar(v, 0.5).unwrap();
    g.update(v, shrunk).unwrap();
    g.output("loss", loss);
    g.output("chosen", chosen);
    g
}

/// Loads it and runs two steps; what came of them.
fn run_everything(gpu: &CudaDevice) -> Result<(Vec<u8>, Vec<u8>), RunError> {
    let plan = compile(&everything(), &CudaTarget, &CompileOptions::default()).unwrap();
    let state = gpu.new_state(StateLayout::of_plan(&plan))?;
    let normal = |n: usize, stream| bytes(&(0..n).map(|i| philox::normal(3, 0, stream, i as u64)).collect::<Vec<_>>());
    state.write("v", &normal(320, 0))?;
    let mut executor = gpu.load(plan, &state, &StateBinding::default())?;
    let indices = [7i32, 0, 7, 71, 30].map(i32::to_ne_bytes).concat();
    executor.feed(&[("x", &normal(288, 1)), ("w", &normal(288, 2)), ("indices", &indices)])?;
    // Launched, recorded and replayed, replayed.
    for _ in 0..3 {
        executor.run()?;
    }
    let mut v = vec![0; 320 * 4];
    state.read("v", &mut v)?;
    Ok((executor.output("chosen")?.to_vec(), v))
}

#[test]
fn the_order_of_threads_does_not_change_bits() {
    let Some(folder) = mock_or_skip("the_order_of_threads_does_not_change_bits") else { return };
    let (gpu, knobs) = (gpu(folder), Knobs::open(folder));
    let forward = run_everything(&gpu).unwrap();
    knobs.set("reverse", 1);
    let reverse = run_everything(&gpu).unwrap();
    knobs.set("reverse", 0);
    assert!(forward == reverse, "kernels depend on the order of their threads");
}

/// Eight steps in flight together, on batches of their own, of which not all feeds are given: the losses of those whose results are
/// kept, and what came of all, as bits.
fn run_in_flight(gpu: &CudaDevice) -> (Vec<u32>, Vec<u8>) {
    let plan = compile(&everything(), &CudaTarget, &CompileOptions::default()).unwrap();
    let state = gpu.new_state(StateLayout::of_plan(&plan)).unwrap();
    let normal = |n: usize, stream| bytes(&(0..n).map(|i| philox::normal(3, 0, stream, i as u64)).collect::<Vec<_>>());
    state.write("v", &normal(320, 0)).unwrap();
    let mut executor = gpu.load(plan, &state, &StateBinding::default()).unwrap();
    let tickets = [1, 2, 3, 4, 5, 6, 7, 8].map(|batch| {
        let (x, w) = (normal(288, batch), normal(288, 10 + batch));
        executor.feed(&[("x", &*x), ("w", &*w)][..1 + batch as usize % 2]).unwrap();
        executor.submit().unwrap()
    });
    let loss = |&ticket| executor.collect(ticket).unwrap().scalar("loss").unwrap().to_bits();
    let losses = tickets[4..].iter().map(loss).collect();
    let mut v = vec![0; 320 * 4];
    state.read("v", &mut v).unwrap();
    (losses, [executor.output("chosen").unwrap(), &v].concat())
}

/// Work that waits in its stream is done in random orders of those that are allowed.
#[test]
fn orders_that_streams_allow_change_nothing() {
    let Some(folder) = mock_or_skip("orders_that_streams_allow_change_nothing") else { return };
    let knobs = Knobs::open(folder);
    let gpus = [false, true].map(|eager| open(folder, eager).unwrap());
    let expected = run_in_flight(&gpus[0]);
    for seed in 1..=200 {
        knobs.set("lazy", seed % 2);
        knobs.set("seed", seed);
        let outcome = run_in_flight(&gpus[usize::from(seed % 4 == 0)]);
        knobs.set("seed", 0);
        assert!(outcome == expected, "seed {seed}: {:?} for {:?}", outcome.0, expected.0);
    }
}

/// Of a device that measures engines, and keeps the fastest ones in a file.
fn options_of(folder: &Path, file: &Path) -> CudaOptions {
    CudaOptions { tuning: Some(file.to_owned()), ..options(folder, false) }
}

fn tuned(folder: &Path, file: &Path) -> CudaDevice {
    CudaDevice::open(&options_of(folder, file)).unwrap()
}

/// The engine of the one convolution in a file of measurements.
fn kept_engine(file: &Path) -> i64 {
    let all: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let convolutions = all["NVIDIA H200 (mock), driver 13000, cuDNN 91900"].as_object().unwrap();
    let (convolution, choice) = convolutions.iter().next().unwrap();
    assert_eq!(
        convolution,
        "forward, f32, [2, 6, 6, 4], kernel [3, 3], filters 8, stride [1, 1], padding [1, 1], dilation [1, 1], groups 1"
    );
    assert!(choice["microseconds"].as_f64().unwrap() >= 0.0);
    choice["engine"].as_i64().unwrap()
}

/// The mock has two engines, 7 and 8, for each convolution, of which the first one can be made slow, or fail.
#[test]
fn the_fastest_engine_is_used_and_kept() {
    let Some(folder) = mock_or_skip("the_fastest_engine_is_used_and_kept") else { return };
    let knobs = Knobs::of(folder, "libcudnn.so.9");
    let untuned = run_everything(&gpu(folder)).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("engines.json");
    let plans = |setting: &str, file: &Path| {
        knobs.set(setting, 1);
        knobs.set("plans", 0);
        let gpu = tuned(folder, file);
        assert!(run_everything(&gpu).unwrap() == untuned);
        assert_eq!(gpu.memory(), []);
        knobs.set(setting, 0);
        knobs.get("plans")
    };
    assert_eq!((plans("slow_first", &file), kept_engine(&file)), (2, 8));
    assert_eq!(plans("nothing", &file), 1, "what was kept is not measured again");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("\"engine\": 8", "\"engine\": 9")).unwrap();
    assert_eq!((plans("slow_first", &file), kept_engine(&file)), (2, 8), "an engine that is not there any more");
    std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    let message = CudaDevice::open(&options_of(folder, &file)).err().unwrap().to_string();
    assert!(
        message.starts_with(&format!("{} holds no choices of engines and algorithms: EOF", file.display())),
        "{message}"
    );
    std::fs::remove_file(&file).unwrap();
    assert_eq!((plans("fails_first", &file), kept_engine(&file)), (2, 8), "an engine that fails");
    let compiles = scratch.path().join("compiled.json");
    assert_eq!((plans("compiles", &compiles), plans("nothing", &compiles)), (2, 1));
    // Two devices: what one of them has measured is there for the other one, and a device keeps its plans.
    let gpu = tuned(folder, &file);
    knobs.set("plans", 0);
    run_everything(&gpu).unwrap();
    run_everything(&gpu).unwrap();
    assert_eq!(knobs.get("plans"), 1);
}

/// The mock's engines have a numerical note: products of `f32` on tensor cores, and sums in any order, are not used.
#[test]
fn engines_that_round_operands_or_change_bits_are_not_used() {
    let Some(folder) = mock_or_skip("engines_that_round_operands_or_change_bits_are_not_used") else { return };
    let knobs = Knobs::of(folder, "libcudnn.so.9");
    for (note, is_used) in [(0, false), (1, false), (3, true), (4, false)] {
        knobs.set("numerics", note + 1);
        let outcome = run_everything(&gpu(folder));
        knobs.set("numerics", 0);
        match outcome {
            Ok(_) => assert!(is_used, "note {note}"),
            Err(error) => {
                let expected =
                    "kernel `forward of 2x6x6x4 3x3 to 8 in f32`: cuDNN has no deterministic engine of full precision";
                assert!(!is_used && error.to_string() == expected, "note {note}: {error}");
            }
        }
    }
}

/// Rounded to TF32: 10 bits of fraction, to nearest even.
fn tf32(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0xfff + (bits >> 13 & 1)) & !0x1fff)
}

/// The libraries of the mock round operands as they are asked to. With TF32 results are those of rounded operands, and in `fp32` those
/// of operands as they are, within 2e-5 of the largest element; the two differ by more than 1e-4 of it.
#[test]
fn tf32_is_a_mode_of_products_and_convolutions() {
    let Some(folder) = mock_or_skip("tf32_is_a_mode_of_products_and_convolutions") else { return };
    let knobs = Knobs::of(folder, "libcudnn.so.9");
    // The first engine of each convolution multiplies on tensor cores, the second one does not.
    knobs.set("first_numerics", 1);
    let mut g = Graph::new();
    let (x, w) = (f32s(&mut g, "x", &[2, 6, 6, 4]), f32s(&mut g, "w", &[3, 3, 4, 8]));
    let dy = f32s(&mut g, "dy", &[2, 6, 6, 8]);
    let (a, b) = (f32s(&mut g, "a", &[5, 48]), f32s(&mut g, "b", &[48, 7]));
    let conv = Conv2d::new([1, 1], [[1, 1], [1, 1]]);
    let y = g.push1(Op::from(conv), &[x, w]).unwrap();
    let dx = g.push1(Op::from(Conv2dDataGrad { conv, input: [6, 6] }), &[dy, w]).unwrap();
    let dw = g.push1(Op::from(Conv2dWeightGrad::new(conv, [3, 3])), &[x, dy]).unwrap();
    let c = g.push1(PLAIN, &[a, b]).unwrap();
    for (name, value) in [("y", y), ("dx", dx), ("dw", dw), ("c", c)] {
        g.output(name, value);
    }
    let feeds: Vec<(String, Vec<f32>)> = g
        .inputs()
        .enumerate()
        .map(|(stream, (_, input))| {
            let draw = |i| philox::normal(9, 0, stream as u32, i as u64);
            (input.name.clone(), (0..input.ty.shape.elements()).map(draw).collect())
        })
        .collect();
    let reference = |round: fn(f32) -> f32| {
        let mut reference = Interpreter::new(&g);
        for (name, numbers) in &feeds {
            reference.set(name, &numbers.iter().map(|&x| f64::from(round(x))).collect::<Vec<_>>());
        }
        reference.run();
        ["y", "dx", "dw", "c"].map(|name| reference.output(name).data.clone())
    };
    let (exact, rounded) = (reference(|x| x), reference(tf32));
    let gpu = gpu(folder);
    for is_tf32 in [false, true] {
        let options = CompileOptions { tf32: is_tf32, ..CompileOptions::default() };
        let device: &dyn Device = &gpu;
        let mut executor = device.load_alone(compile(&g, &CudaTarget, &options).unwrap()).unwrap();
        for (name, numbers) in &feeds {
            executor.feed(&[(name, &bytes(numbers))]).unwrap();
        }
        executor.run().unwrap();
        for (index, name) in ["y", "dx", "dw", "c"].into_iter().enumerate() {
            let actual = executor.output_f32(name).unwrap();
            let largest = exact[index].iter().fold(0.0f64, |most, x| most.max(x.abs()));
            let distance = |expected: &[f64]| {
                let errors = expected.iter().zip(actual).map(|(x, &y)| (x - f64::from(y)).abs() / largest);
                errors.fold(0.0, f64::max)
            };
            let [from_exact, from_rounded] = [&exact, &rounded].map(|expected| distance(&expected[index]));
            let (near, far) = if is_tf32 { (from_rounded, from_exact) } else { (from_exact, from_rounded) };
            assert!(near <= 2e-5 && far > 1e-4, "{name}, TF32 {is_tf32}: {near:.1e} and {far:.1e}");
        }
    }
    knobs.set("first_numerics", 0);
}
