//! The mock as a device of executors.

#![allow(dead_code, reason = "each file of tests uses a part")]

use bessemer_cuda::{Check, CudaDevice, CudaOptions, CudaTarget, GpuError};
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::Plan;
use bessemer_ir::reference::Interpreter;
use bessemer_ir::run::{Device, Executor};
use bessemer_ir::{DType, Graph, Role, TensorType, Value, philox};
use std::path::Path;

/// Options of the first device of the mocks in this folder, whose steps are replayed unless it is `eager`; compiled kernels are kept
/// beside them.
pub(crate) fn options(folder: &Path, eager: bool) -> CudaOptions {
    CudaOptions {
        gpu_libraries: vec![folder.to_owned()],
        ordinal: 0,
        cubins: folder.join("cubins"),
        eager,
        check: Check::Nothing,
        tuning: None,
        no_epilogues: false,
    }
}

/// The first device of the mocks in this folder.
///
/// # Errors
/// A call of the mocks fails.
pub(crate) fn open(folder: &Path, eager: bool) -> Result<CudaDevice, GpuError> {
    CudaDevice::open(&options(folder, eager))
}

/// That device, with steps that are replayed.
pub(crate) fn gpu(folder: &Path) -> CudaDevice {
    open(folder, false).unwrap()
}

/// A graph compiled for GPUs.
pub(crate) fn plan(graph: &Graph) -> Plan {
    compile(graph, &CudaTarget, &CompileOptions::default()).unwrap()
}

pub(crate) fn load(gpu: &CudaDevice, graph: &Graph) -> Box<dyn Executor> {
    let device: &dyn Device = gpu;
    device.load_alone(plan(graph)).unwrap()
}

/// A feed of `f32`.
pub(crate) fn f32s(g: &mut Graph, name: &str, shape: &[usize]) -> Value {
    g.input(name, Role::Feed, TensorType::f32(shape)).unwrap()
}

/// Numbers as the bytes of a feed.
pub(crate) fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

/// Elements of an output in `f64`.
pub(crate) fn elements(executor: &dyn Executor, name: &str, ty: DType) -> Vec<f64> {
    let number = |bytes: &[u8]| match ty {
        DType::Bf16 => half::bf16::from_ne_bytes([bytes[0], bytes[1]]).to_f64(),
        DType::F16 => half::f16::from_ne_bytes([bytes[0], bytes[1]]).to_f64(),
        _ => f32::from_ne_bytes(bytes.try_into().unwrap()).into(),
    };
    executor.output(name).unwrap().chunks_exact(ty.size()).map(number).collect()
}

/// Normal numbers for the feeds of a graph, which are `f32`, by name.
fn normal_feeds(graph: &Graph) -> impl Iterator<Item = (&str, Vec<f32>)> {
    let inputs = graph.inputs().map(|(_, input)| input).enumerate();
    inputs.filter(|(_, input)| input.role == Role::Feed).map(|(stream, input)| {
        let draw = |i| philox::normal(9, 0, stream as u32, i as u64);
        (&*input.name, (0..input.ty.shape.elements()).map(draw).collect())
    })
}

/// A graph whose `f32` feeds have normal numbers, ready to run.
pub(crate) fn load_fed(gpu: &CudaDevice, graph: &Graph) -> Box<dyn Executor> {
    let mut executor = load(gpu, graph);
    normal_feeds(graph).for_each(|(name, numbers)| executor.feed(&[(name, &bytes(&numbers))]).unwrap());
    executor
}

/// Runs a graph of `f32` feeds of normal numbers, and compares its outputs with the reference, relative to the largest
/// element. State is zero.
pub(crate) fn agrees(gpu: &CudaDevice, graph: &Graph) {
    agrees_within(gpu, graph, 2e-5);
}

/// The same for another tolerance.
pub(crate) fn agrees_within(gpu: &CudaDevice, graph: &Graph, allowed: f64) -> Box<dyn Executor> {
    let mut executor = load_fed(gpu, graph);
    let mut reference = Interpreter::new(graph);
    for (name, numbers) in normal_feeds(graph) {
        reference.set(name, &numbers.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
    }
    reference.run();
    executor.run().unwrap();
    for (name, value) in graph.outputs() {
        let (expected, actual) = (&reference.output(name).data, elements(&*executor, name, graph.dtype(*value)));
        let largest = expected.iter().fold(1e-3f64, |most, x| most.max(x.abs()));
        assert_eq!(actual.len(), expected.len());
        for (index, (x, y)) in expected.iter().zip(&actual).enumerate() {
            assert!((x - y).abs() <= allowed * largest, "{name}[{index}] is {y}, the reference has {x}");
        }
    }
    executor
}

/// As [`agrees_within`]. The name of the first kernel that begins so.
pub(crate) fn kernel_that_agrees(gpu: &CudaDevice, graph: &Graph, allowed: f64, beginning: &str) -> String {
    let executor = agrees_within(gpu, graph, allowed);
    let mut names = executor.kernels().into_iter().map(|kernel| kernel.name);
    names.find(|name| name.starts_with(beginning)).unwrap()
}
