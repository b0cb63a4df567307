//! A step allocates nothing once the executor stands, and neither do its micro-batches.

use bessemer_cpu::{CpuOptions, Executor, Isa};
use bessemer_ir::autodiff::gradients;
use bessemer_ir::ops::conv::Conv2d;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::{Graph, GraphError, Role, TensorType};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn step() -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::f32([2, 12, 12, 20]))?;
    let w = g.input("w", Role::Parameter, TensorType::f32([3, 3, 20, 24]))?;
    let y = g.push1(Conv2d::new([2, 2], [[1, 1], [1, 1]]), &[x, w])?;
    let (mean, var) = g.moments(y, &[0, 1, 2])?;
    let y = g.sub(y, mean)?;
    let var = g.add_scalar(var, 1e-5)?;
    let rstd = g.rsqrt(var)?;
    let y = g.mul(y, rstd)?;
    let y = g.relu(y)?;
    let pooled = g.mean(y, &[1, 2])?;
    let log = g.log_softmax(pooled)?;
    let square = g.square(log)?;
    let loss = g.sum(square, &[0, 1])?;
    let grad = gradients(&mut g, loss, &[w])?[0];
    let sum = g.input("sum", Role::State, TensorType::f32([3, 3, 20, 24]))?;
    let total = g.add(sum, grad)?;
    g.update_each_micro_batch(sum, total)?;
    let moved = g.sub(w, total)?;
    g.update(w, moved)?;
    g.output("loss", loss);
    Ok(g)
}

#[test]
fn a_step_allocates_nothing() {
    let cpu = CpuOptions { isa: Isa::detect(), threads: 2 };
    for fuse in [true, false] {
        let options = CompileOptions { fuse, ..CompileOptions::default() };
        let plan = compile(&step().expect("a legal graph"), &cpu, &options).expect("it compiles");
        let mut executor = Executor::new(plan, cpu).expect("every operation has a kernel");
        executor.write_f32("x", &(0..2 * 12 * 12 * 20).map(|i| (i % 7) as f32).collect::<Vec<_>>()).expect("x");
        executor.write_f32("w", &(0..9 * 20 * 24).map(|i| (i % 5) as f32 - 2.0).collect::<Vec<_>>()).expect("w");
        executor.accumulate().expect("it runs");
        executor.run().expect("it runs");
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..3 {
            executor.accumulate().expect("it runs");
            executor.run().expect("it runs");
        }
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "fuse {fuse}");
    }
}
