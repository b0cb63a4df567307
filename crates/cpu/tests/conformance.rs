//! The conformance suite on every instruction set of this machine, and what the CPU says of graphs that it cannot run.

use bessemer_cpu::{CpuOptions, CpuState, Executor, Isa, KernelError, Unsupported};
use bessemer_ir::ops::collective::AllReduce;
use bessemer_ir::ops::index::{ArgMax, Gather};
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::{NullTarget, Target};
use bessemer_ir::rules::Rules;
use bessemer_ir::run::{Collectives, RunError, StateBinding, StateLayout};
use bessemer_ir::{DType, Graph, GraphError, Role, TensorType};
use bessemer_testkit::{Backend, Refusal, Steps, Tensors, check, check_networks, half_of_cases, peer_cases};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The sums of ranks that all have the same tensors.
#[derive(Debug)]
struct Alike {
    ranks: usize,
    sums: Mutex<HashMap<i32, Vec<Vec<f32>>>>,
}

impl Collectives for Alike {
    fn ranks(&self) -> usize {
        self.ranks
    }

    fn start(&self, _: &AllReduce, tensors: &[&[f32]]) -> Result<i32, RunError> {
        let sum = |&x: &f32| (0..self.ranks).fold(0.0, |sum, _| sum + x);
        let mut sums = self.sums.lock().unwrap();
        let number = (0..).find(|number| !sums.contains_key(number)).unwrap();
        sums.insert(number, tensors.iter().map(|tensor| tensor.iter().map(sum).collect()).collect());
        Ok(number)
    }

    fn wait(&self, number: i32, tensors: &mut [&mut [f32]]) -> Result<(), RunError> {
        let sums = self.sums.lock().unwrap().remove(&number).expect("a sum under way");
        tensors.iter_mut().zip(&sums).for_each(|(tensor, sum)| tensor.copy_from_slice(sum));
        Ok(())
    }
}

/// The CPU with one instruction set.
struct Cpu(CpuOptions);

impl Backend for Cpu {
    fn name(&self) -> String {
        self.0.isa.to_string()
    }

    fn rules(&self) -> &Rules {
        self.0.rules()
    }

    fn run(
        &self,
        graph: &Graph,
        options: &CompileOptions,
        workers: usize,
        inputs: &Tensors,
        steps: Steps,
    ) -> Result<Tensors, Refusal> {
        let refusal = |error: RunError| Refusal::Failed(error.to_string());
        let cpu = CpuOptions { threads: workers, ..self.0 };
        let plan = compile(graph, &cpu, options).map_err(|error| match error {
            GraphError::Unsupported(operations) => Refusal::Unsupported(operations.list()),
            other => Refusal::Failed(other.to_string()),
        })?;
        let state = Arc::new(CpuState::new(StateLayout::of_plan(&plan)).map_err(refusal)?);
        let ranks = Arc::new(Alike { ranks: steps.ranks, sums: Mutex::default() });
        let mut executor = Executor::over(plan, cpu, ranks, state, &StateBinding::default()).map_err(refusal)?;
        for (name, bytes) in inputs {
            executor.write(name, bytes).map_err(refusal)?;
        }
        for _ in 0..steps.steps {
            (1..steps.micro_batches).try_for_each(|_| executor.accumulate()).map_err(refusal)?;
            executor.run().map_err(refusal)?;
        }
        let output = |name: &String| Ok((name.clone(), executor.output(name).map_err(refusal)?.to_vec()));
        graph.outputs().iter().map(|(name, _)| output(name)).collect()
    }
}

fn check_half(half: usize) {
    let backends: Vec<Cpu> = Isa::available().into_iter().map(|isa| Cpu(CpuOptions { isa, threads: 1 })).collect();
    let backends: Vec<&dyn Backend> = backends.iter().map(|cpu| cpu as &dyn Backend).collect();
    match check(&half_of_cases(half), &backends, &[]) {
        Ok(report) => println!("{report}"),
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn even_cases_on_every_instruction_set() {
    check_half(0);
}

#[test]
fn odd_cases_on_every_instruction_set() {
    check_half(1);
}

#[test]
fn results_of_other_implementations_on_every_instruction_set() {
    for case in peer_cases() {
        for isa in Isa::available() {
            let cpu = Cpu(CpuOptions { isa, threads: 1 });
            let results = cpu.run(&case.graph, &CompileOptions::default(), 2, &case.inputs(), Steps::ONE);
            let outcome = results.map_err(|refusal| refusal.to_string());
            if let Err(problem) = outcome.and_then(|results| case.check_results(2e-5, &results)) {
                panic!("{isa}: {problem}");
            }
        }
    }
}

/// Each seed on one instruction set.
#[test]
fn random_networks() {
    let isas = Isa::available();
    let result = check_networks(0..40, |network, options| {
        let isa = isas[network.seed() as usize % isas.len()];
        network.check(&Cpu(CpuOptions { isa, threads: 1 }), options)
    });
    result.unwrap_or_else(|failures| panic!("{failures}"));
}

fn cpu() -> CpuOptions {
    CpuOptions { isa: Isa::detect(), threads: 1 }
}

#[test]
fn an_index_out_of_range_names_the_operation_and_the_index() {
    let mut g = Graph::new();
    let table = g.input("table", Role::Feed, TensorType::f32([4, 2])).unwrap();
    let rows = g.input("rows", Role::Feed, TensorType::new(DType::I32, [2])).unwrap();
    let y = g.scoped("embedding", |g| g.push1(Gather::ROWS, &[table, rows])).unwrap();
    g.output("y", y);
    let mut executor = Executor::new(compile(&g, &cpu(), &CompileOptions::default()).unwrap(), cpu()).unwrap();
    executor.write("rows", &[1i32, 4].map(i32::to_ne_bytes).concat()).unwrap();
    let message = executor.run().unwrap_err().to_string();
    assert_eq!(message, "gather at `embedding`: index 4 at position 1 is not in 0..4");
}

#[test]
fn what_has_no_kernel_is_listed() {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::new(DType::I32, [2, 6])).unwrap();
    let largest = g.scoped("head", |g| g.push1(ArgMax, &[x])).unwrap();
    g.output("y", largest);
    let error = compile(&g, &cpu(), &CompileOptions::default()).expect_err("there is no kernel");
    let message = error.to_string();
    let GraphError::Unsupported(unsupported) = error else { panic!("{message}") };
    let errors: Vec<&KernelError> = unsupported.operations.iter().filter_map(|error| error.downcast_ref()).collect();
    let [KernelError::Unsupported { node, inputs, reason }] = &errors[..] else { panic!("{message}") };
    let expected = Unsupported::Operands { expected: DType::F32, actual: DType::I32 };
    assert_eq!((node.path.as_str(), reason), ("head", &expected));
    assert_eq!(*inputs, [TensorType::new(DType::I32, [2, 6])]);
    let listed = "there are no kernels on cpu for: arg_max (1); the first is arg_max at `head` (";
    assert!(message.starts_with(listed), "{message}");
}

/// Scratch memory is laid out for a number of threads.
#[test]
fn a_plan_runs_with_the_threads_that_it_was_compiled_for() {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::f32([4])).unwrap();
    let y = g.relu(x).unwrap();
    g.output("y", y);
    for target in [&cpu() as &dyn Target, &NullTarget] {
        let plan = compile(&g, target, &CompileOptions::default()).unwrap();
        let error = Executor::new(plan, CpuOptions { threads: 2, ..cpu() }).err().expect("another target");
        assert!(matches!(error, RunError::ForeignPlan { device: "cpu" }), "{error}");
    }
}
