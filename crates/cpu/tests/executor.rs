//! The executor behind its trait: several plans over one state, results of steps, and what kernels say of themselves.

use bessemer_cpu::{CpuDevice, CpuOptions, Executor};
use bessemer_ir::ops::conv::{Conv2d, Conv2dWeightGrad};
use bessemer_ir::ops::limited::Limited;
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::{Plan, StateTensor};
use bessemer_ir::rules::Rules;
use bessemer_ir::run::{
    self, Device, RunError, StateBinding, StateLayout, StateSnapshot, StateStore, Ticket, read_f32, write_f32,
};
use bessemer_ir::{DType, Graph, GraphError, Role, TensorType};
use std::any::Any;
use std::sync::Arc;

fn device() -> CpuDevice {
    CpuDevice::new(CpuOptions { threads: 2, ..CpuOptions::default() })
}

/// `w + 1`, with the sum of the old `w` as the output `sum`.
fn training() -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let w = g.input("w", Role::Parameter, TensorType::f32([40, 24]))?;
    let moved = g.add_scalar(w, 1.0)?;
    g.update(w, moved)?;
    let sum = g.sum(w, &[0, 1])?;
    g.output("sum", sum);
    Ok(g)
}

/// `x w` with rows of ones.
fn forward(rows: usize) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::f32([rows, 40]))?;
    let w = g.input("w", Role::Parameter, TensorType::f32([40, 24]))?;
    let y = g.push1(Matmul { trans_a: false, trans_b: false }, &[x, w])?;
    g.output("y", y);
    Ok(g)
}

fn compiled(graph: &Graph) -> Plan {
    compile(graph, device().target(), &CompileOptions::default()).expect("a legal graph")
}

fn layout(graph: &Graph) -> StateLayout {
    StateLayout::of_plan(&compiled(graph))
}

fn load(
    graph: &Graph,
    state: &Arc<dyn StateStore>,
    binding: &StateBinding<'_>,
) -> Result<Box<dyn run::Executor>, RunError> {
    device().load(compiled(graph), state, binding)
}

fn product(executor: &mut dyn run::Executor, rows: usize) -> f32 {
    executor.feed(&[("x", bytemuck::cast_slice(&vec![1.0f32; rows * 40]))]).expect("a feed");
    executor.run().expect("it runs");
    let y = executor.output_f32("y").expect("an output");
    assert!(y.iter().all(|element| *element == y[0]));
    y[0]
}

#[test]
fn plans_of_several_sizes_follow_the_state_they_share() {
    let training = training().unwrap();
    let tensor = |name: &str| StateTensor::new(name, &TensorType::f32([40, 24]), &Rules::DEFAULT);
    let state = device().new_state(StateLayout::new([tensor("w"), tensor("ema.w")], 64)).unwrap();
    let mut train = load(&training, &state, &StateBinding::default()).unwrap();
    let (one, many) = (forward(1).unwrap(), forward(64).unwrap());
    let mut one = load(&one, &state, &StateBinding::default()).unwrap();
    let many_plan = load(&many, &state, &StateBinding::default());
    let average = |name: &str| format!("ema.{name}");
    let mut averages = load(&many, &state, &StateBinding { rename: Some(&average) }).unwrap();
    let mut many = many_plan.unwrap();
    write_f32(&*state, "ema.w", &[0.5; 40 * 24]).unwrap();
    // What is packed of the weights is packed again after each step of the other plan.
    for step in 0..3 {
        let expected = 40.0 * step as f32;
        assert_eq!((product(&mut *one, 1), product(&mut *many, 64)), (expected, expected));
        assert_eq!(product(&mut *averages, 64), 20.0);
        let results = train.run().unwrap();
        assert_eq!(results.scalar("sum").unwrap(), 24.0 * expected);
    }
    write_f32(&*state, "w", &[2.0; 40 * 24]).unwrap();
    assert_eq!((product(&mut *one, 1), product(&mut *many, 64)), (80.0, 80.0));
    assert_eq!(read_f32(&*state, "w").unwrap(), vec![2.0; 40 * 24]);
}

#[test]
fn results_of_some_steps_are_kept() {
    let graph = training().unwrap();
    let state = device().new_state(layout(&graph)).unwrap();
    let mut executor = load(&graph, &state, &StateBinding::default()).unwrap();
    let tickets: Vec<Ticket> = (0..6).map(|_| executor.submit().unwrap()).collect();
    for (step, &ticket) in tickets.iter().enumerate().skip(2) {
        assert_eq!(executor.collect(ticket).unwrap().scalar("sum").unwrap(), (40 * 24 * step) as f32);
    }
    let error = executor.collect(tickets[1]).unwrap_err().to_string();
    assert_eq!(error, "the results of step 1 are gone; those of step 2 and later are kept");
    assert!(executor.collect(Ticket(6)).is_err(), "nobody submitted it");
    let error = executor.collect(tickets[5]).unwrap().scalar("loss").unwrap_err().to_string();
    assert_eq!(error, "there is no output of one element named `loss`; there are: sum");
}

#[test]
fn a_snapshot_has_some_tensors_as_they_were() {
    let tensor = |name: &str| StateTensor::new(name, &TensorType::f32([3]), &Rules::DEFAULT);
    let state = device().new_state(StateLayout::new(["a", "b", "c", "d"].map(tensor), 64)).unwrap();
    let set = |value: f32| {
        for (number, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            write_f32(&*state, name, &[value + number as f32; 3]).unwrap();
        }
    };
    let first = || ["a", "b", "c", "d"].map(|name| read_f32(&*state, name).unwrap()[2]);
    let mut snapshot = Arc::clone(&state).snapshot(&[3, 0, 1]).unwrap();
    set(10.0);
    snapshot.take().unwrap();
    set(20.0);
    snapshot.restore().unwrap();
    assert_eq!(first(), [10.0, 11.0, 22.0, 13.0]);
}

/// State of another device.
struct Elsewhere(StateLayout);

impl StateStore for Elsewhere {
    fn layout(&self) -> &StateLayout {
        &self.0
    }

    fn read(&self, _: &str, _: &mut [u8]) -> Result<(), RunError> {
        Ok(())
    }

    fn write(&self, _: &str, _: &[u8]) -> Result<(), RunError> {
        Ok(())
    }

    fn snapshot(self: Arc<Self>, _: &[usize]) -> Result<Box<dyn StateSnapshot>, RunError> {
        unreachable!("nobody remembers this state")
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn state_that_does_not_fit_is_refused() {
    let graph = training().unwrap();
    let refused = |layout: StateLayout| {
        let state = device().new_state(layout).unwrap();
        load(&graph, &state, &StateBinding::default()).err().expect("it does not fit").to_string()
    };
    assert_eq!(refused(StateLayout::default()), "there is no state tensor named `w`; there are: ");
    let narrow = StateTensor::new("w", &TensorType::f32([40, 23]), &Rules::DEFAULT);
    let expected = "the plan needs `w` as f32[40, 24]; in the state it is f32[40, 23]";
    assert_eq!(refused(StateLayout::new([narrow], 64)), expected);
    let elsewhere: Arc<dyn StateStore> = Arc::new(Elsewhere(layout(&graph)));
    let error = load(&graph, &elsewhere, &StateBinding::default()).err().expect("of another device").to_string();
    assert_eq!(error, "the state lies on another device than cpu");
}

#[test]
fn feeds_and_outputs_are_checked() {
    let graph = forward(2).unwrap();
    let state = device().new_state(layout(&graph)).unwrap();
    let mut executor = load(&graph, &state, &StateBinding::default()).unwrap();
    let error = executor.feed(&[("x", &[0; 4])]).unwrap_err().to_string();
    assert_eq!(error, "`x` is f32[2, 40], which is 320 bytes; 4 bytes were given");
    assert!(executor.feed(&[("w", &[0; 40 * 24 * 4])]).is_err(), "state is no feed");
    assert!(executor.output_i32("y").unwrap_err().to_string().contains("cannot be read as i32"));
    assert!(executor.output("z").is_err());
}

#[test]
fn kernels_tell_the_arithmetic_they_do() {
    let flops = |precision: DType| {
        let mut g = Graph::new();
        let mut input = |name: &str, role, shape: [usize; 4]| g.input(name, role, TensorType::f32(shape)).unwrap();
        let x = input("x", Role::Feed, [2, 14, 14, 64]);
        let w = input("w", Role::Parameter, [3, 3, 64, 64]);
        let y = g.push1(Conv2d::new([1, 1], [[1, 1], [1, 1]]), &[x, w]).unwrap();
        g.output("y", y);
        let cpu = CpuOptions { threads: 1, ..CpuOptions::default() };
        let options = CompileOptions { precision, ..CompileOptions::default() };
        let executor = Executor::new(compile(&g, &cpu, &options).unwrap(), cpu).unwrap();
        let kernels = run::Executor::kernels(&executor);
        let is_winograd = kernels.iter().any(|kernel| kernel.name.starts_with("Winograd"));
        (is_winograd, kernels.iter().map(|kernel| kernel.flops).sum::<u64>())
    };
    assert_eq!(flops(DType::F32), (true, 2 * (2 * 4 * 4) * 36 * 64 * 64));
    assert_eq!(flops(DType::Bf16), (false, 2 * (2 * 14 * 14) * 9 * 64 * 64));
}

/// A weight gradient of some items of a batch is that of a batch of these, bit for bit, whichever algorithm they take.
#[test]
fn limited_weight_gradients_are_those_of_fewer_items() {
    const ITEMS: usize = 40;
    let gradient = |items: usize, count: Option<i32>| {
        let mut g = Graph::new();
        let mut feed = |name: &str, ty| g.input(name, Role::Feed, ty).unwrap();
        let x = feed("x", TensorType::f32([items, 7, 7, 32]));
        let dy = feed("dy", TensorType::f32([items, 7, 7, 48]));
        let limit = count.map(|_| feed("count", TensorType::new(DType::I32, [])));
        let op = Conv2dWeightGrad::new(Conv2d::new([1, 1], [[1, 1], [1, 1]]), [3, 3]);
        let dw = match limit {
            Some(limit) => g.push1(Limited::new(op), &[x, dy, limit]),
            None => g.push1(op, &[x, dy]),
        };
        g.output("dw", dw.unwrap());
        let state = device().new_state(layout(&g)).unwrap();
        let mut executor = load(&g, &state, &StateBinding::default()).unwrap();
        let elements = |len: usize| (0..len).map(|i| (i % 19) as f32 - 9.0).collect::<Vec<f32>>();
        let (x, dy) = (elements(items * 7 * 7 * 32), elements(items * 7 * 7 * 48));
        let mut feeds = vec![("x", bytemuck::cast_slice(&x)), ("dy", bytemuck::cast_slice(&dy))];
        let count = count.map(i32::to_ne_bytes);
        feeds.extend(count.as_ref().map(|bytes| ("count", &bytes[..])));
        executor.feed(&feeds).unwrap();
        executor.run().unwrap();
        let names: Vec<String> = executor.kernels().iter().map(|kernel| kernel.name.clone()).collect();
        (names, executor.output_f32("dw").unwrap().to_vec())
    };
    for count in [1, 2, 3, 5, 17, 39] {
        let (limited, few) = (gradient(ITEMS, Some(count)), gradient(count as usize, None));
        assert!(limited.0.iter().any(|name| name == "Winograd 4x4"), "{:?}", limited.0);
        assert!(limited.1 == few.1, "{count} items");
    }
    assert!(gradient(ITEMS, Some(0)).1.iter().all(|&element| element == 0.0));
}

#[test]
fn parts_of_concatenations_are_written_where_the_whole_lies() {
    let concats = |axis: usize, parts: [[usize; 2]; 2]| {
        let mut g = Graph::new();
        let products = parts.map(|[rows, cols]| {
            let x = g.input(&format!("x{rows}x{cols}"), Role::Feed, TensorType::f32([rows, 8]))?;
            let w = g.input(&format!("w{rows}x{cols}"), Role::Parameter, TensorType::f32([8, cols]))?;
            g.push1(Matmul { trans_a: false, trans_b: false }, &[x, w])
        });
        let products = products.into_iter().collect::<Result<Vec<_>, GraphError>>().unwrap();
        let joined = g.concat(&products, axis).unwrap();
        let relu = g.relu(joined).unwrap();
        g.output("y", relu);
        let plan = compiled(&g);
        plan.calls.iter().filter(|call| plan.graph.node(call.node).op.rule().name() == "concat").count()
    };
    assert_eq!(concats(0, [[3, 16], [2, 16]]), 0);
    assert_eq!(concats(1, [[1, 32], [1, 5]]), 0);
    assert_eq!(concats(1, [[2, 16], [2, 32]]), 1, "parts are not neighbours in memory");
    assert_eq!(concats(0, [[3, 5], [2, 5]]), 1, "the second part is not aligned");
}

#[test]
fn weights_are_packed_behind_their_concatenation() {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::f32([64, 40])).unwrap();
    let halves = ["first", "second"].map(|name| {
        let half = g.input(name, Role::Parameter, TensorType::f32([20, 24]))?;
        g.mul_scalar(half, 2.0)
    });
    let halves = halves.into_iter().collect::<Result<Vec<_>, GraphError>>().unwrap();
    let w = g.concat(&halves, 0).unwrap();
    let y = g.push1(Matmul { trans_a: false, trans_b: false }, &[x, w]).unwrap();
    g.output("y", y);
    let state = device().new_state(layout(&g)).unwrap();
    write_f32(&*state, "first", &[1.0; 20 * 24]).unwrap();
    write_f32(&*state, "second", &[0.25; 20 * 24]).unwrap();
    let mut executor = load(&g, &state, &StateBinding::default()).unwrap();
    assert_eq!(product(&mut *executor, 64), 20.0 * 2.0 + 20.0 * 0.5);
}
