//! Ranks that add by NCCL within their steps, over the mock of a GPU and of NCCL, as threads of this process.

use crate::common::{Knobs, mock_or_skip};
use crate::device::{self, options};
use crate::steps::{Feed, Outcome, Run, content, on_gpu, train_rank};
use bessemer_cuda::{CudaDevice, CudaOptions, CudaTarget};
use bessemer_ir::ops::collective::{AllReduce, Wire};
use bessemer_ir::ops::conv::Conv2d;
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::passes::buckets::BucketOptions;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::run::{Device, Peers, RunError, StateBinding, StateLayout, read_f32, write_f32};
use bessemer_ir::{Graph, Op, Role, TensorType, Value, philox};
use bessemer_models::bert::{BertConfig, BertOptions, Sequences};
use bessemer_models::{LossOptions, Model, bert, find};
use bessemer_nn::{Clip, ClipForm, ClipOf, DecayExclude, Lamb, Optimizer, Over, Ranks, Schedule, Sgd, TrainConfig};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};

/// What the ranks of a job know of it.
#[derive(Default)]
struct Job {
    /// What rank 0 gave, each time.
    first: Mutex<Vec<Vec<u8>>>,
    given: Condvar,
    has_failed: AtomicBool,
    begun: AtomicUsize,
    is_done: AtomicUsize,
}

struct Rank {
    job: Arc<Job>,
    rank: usize,
    ranks: usize,
    /// How often it asked for what rank 0 gave.
    asked: AtomicUsize,
}

impl Peers for Rank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn of_first(&self, bytes: Option<Vec<u8>>) -> Result<Vec<u8>, RunError> {
        let mut first = self.job.first.lock().unwrap();
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        if let Some(bytes) = bytes {
            first.push(bytes);
            self.job.given.notify_all();
        }
        let first = self.job.given.wait_while(first, |first| first.len() <= number).unwrap();
        Ok(first[number].clone())
    }

    fn begun(&self, sums: u32) {
        self.job.begun.fetch_add(sums as usize, Ordering::SeqCst);
    }

    fn done(&self) {
        self.job.is_done.fetch_add(1, Ordering::SeqCst);
    }

    fn check(&self) -> Result<(), RunError> {
        match self.job.has_failed.load(Ordering::SeqCst) {
            true => Err(RunError::Ranks("lost rank 1 (host b)".into())),
            false => Ok(()),
        }
    }

    fn give_up(&self, error: &RunError) {
        panic!("the device does not return: {error}");
    }
}

/// What every rank gives, each in a thread of its own with a device of its own.
fn in_ranks<T: Send>(
    folder: &Path,
    (ranks, eager): (usize, bool),
    work: impl Fn(&CudaDevice, usize, &Job) -> T + Sync,
) -> Vec<T> {
    in_ranks_of(ranks, |_| options(folder, eager), work)
}

/// The same with options of each rank, which are made in its thread.
fn in_ranks_of<T: Send>(
    ranks: usize,
    options: impl Fn(usize) -> CudaOptions + Sync,
    work: impl Fn(&CudaDevice, usize, &Job) -> T + Sync,
) -> Vec<T> {
    let job = Arc::new(Job::default());
    std::thread::scope(|scope| {
        let (work, options, job) = (&work, &options, &job);
        let start = |rank| {
            scope.spawn(move || {
                let peers = Arc::new(Rank { job: Arc::clone(job), rank, ranks, asked: AtomicUsize::new(0) });
                let device = CudaDevice::of_rank(&options(rank), peers).unwrap();
                work(&device, rank, job)
            })
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

/// Several sums of what follows from `x`, with work between and behind them, some of which reads what others wait for.
fn several_sums(ranks: usize, wire: Wire) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::f32([700])).unwrap();
    let total = g.input("total", Role::State, TensorType::f32([700])).unwrap();
    let sum = |g: &mut Graph, x: Value| g.push1(AllReduce { ranks, wire }, &[x]).unwrap();
    let parts: Vec<Value> = (1..=4).map(|factor| g.mul_scalar(x, f64::from(factor)).unwrap()).collect();
    let sums: Vec<Value> = parts.iter().map(|&part| sum(&mut g, part)).collect();
    let square = g.square(sums[1]).unwrap();
    let of_squares = sum(&mut g, square);
    let next = g.add(total, sums[3]).unwrap();
    g.update(total, next).unwrap();
    for (number, &sum) in sums.iter().enumerate() {
        g.output(&format!("sum{number}"), sum);
    }
    g.output("of_squares", of_squares);
    g
}

fn numbers(rank: usize, step: usize) -> Vec<f32> {
    (0..700).map(|i| philox::normal(3, rank as u32, step as u32, i)).collect()
}

/// Each rank gets what follows from the numbers of all, in steps that are launched and steps that are replayed, whatever the order in
/// which streams run; messages of `f32` are added without rounding anything else.
#[test]
fn sums_are_those_of_all_ranks_in_any_order_of_streams() {
    let Some(folder) = mock_or_skip("sums_are_those_of_all_ranks_in_any_order_of_streams") else { return };
    const STEPS: usize = 4;
    for ((ranks, wire), allowed) in
        [((2, Wire::F32), 0.0), ((3, Wire::F32), 0.0), ((2, Wire::Bf16), 0.05), ((2, Wire::F16), 0.01)]
    {
        let graph = several_sums(ranks, wire);
        for (seed, (eager, overlap)) in
            [(true, true), (false, true), (false, false)].into_iter().cycle().take(12).enumerate()
        {
            let buckets = BucketOptions { first_bytes: 0, bytes: if seed % 2 == 0 { 0 } else { 6000 }, overlap };
            let options = CompileOptions { buckets, ..CompileOptions::default() };
            let of_ranks = in_ranks(folder, (ranks, eager), |device, rank, job| {
                Knobs::open(folder).set("seed", seed as i64);
                let plan = compile(&graph, &CudaTarget, &options).unwrap();
                let state = device.new_state(StateLayout::of_plan(&plan)).unwrap();
                write_f32(&*state, "total", &[0.0; 700]).unwrap();
                let mut executor = device.load(plan, &state, &StateBinding::default()).unwrap();
                let mut results = Vec::new();
                for step in 0..STEPS {
                    executor.feed(&[("x", &bytes(&numbers(rank, step)))]).unwrap();
                    executor.run().unwrap();
                    let names = ["sum0", "sum1", "sum2", "sum3", "of_squares"];
                    results.extend(names.map(|name| executor.output_f32(name).unwrap().to_vec()));
                }
                results.push(read_f32(&*state, "total").unwrap());
                Knobs::open(folder).set("seed", 0);
                assert!(job.begun.load(Ordering::SeqCst) > 0 && job.is_done.load(Ordering::SeqCst) > 0);
                results
            });
            let what = format!("{ranks} ranks, {wire:?}, eager {eager}, overlap {overlap}, seed {seed}");
            assert!(of_ranks.iter().all(|results| *results == of_ranks[0]), "{what}: ranks differ");
            let mut total = vec![0.0f32; 700];
            let results = &of_ranks[0];
            for step in 0..STEPS {
                let of_rank = |factor: f32| {
                    let all: Vec<Vec<f32>> = (0..ranks).map(|rank| numbers(rank, step)).collect();
                    (0..700)
                        .map(|i| all.iter().map(|x| x[i] * factor).fold(0.0, |sum, x| sum + x))
                        .collect::<Vec<f32>>()
                };
                let mut expected: Vec<Vec<f32>> = (1..=4).map(|factor| of_rank(factor as f32)).collect();
                total.iter_mut().zip(&expected[3]).for_each(|(total, x)| *total += x);
                let squares = expected[1].iter().map(|x| (0..ranks).map(|_| x * x).fold(0.0, |sum, x| sum + x));
                expected.push(squares.collect());
                for (name, (actual, expected)) in results[5 * step..].iter().zip(&expected).enumerate() {
                    close(&format!("{what}: output {name} of step {step}"), actual, expected, allowed);
                }
            }
            close(&format!("{what}: state"), &results[5 * STEPS], &total, allowed);
        }
    }
}

fn close(what: &str, actual: &[f32], expected: &[f32], allowed: f32) {
    let largest = expected.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
    for (i, (x, y)) in expected.iter().zip(actual).enumerate() {
        assert!((x - y).abs() <= allowed * largest, "{what}: element {i} is {y}, not {x}");
    }
}

fn resnet(ranks: usize) -> Model {
    let spec = find("resnet20-cifar").unwrap();
    let options = bessemer_models::ModelOptions { image_size: [8, 8], ..spec.options() };
    let sgd = Sgd { momentum: 0.9, weight_decay: 1e-4, decay_exclude: DecayExclude::BnSubstring, ..Sgd::default() };
    let config = TrainConfig {
        report_grad_norm: true,
        accumulation: 4,
        ranks: Ranks { count: ranks, ..Ranks::default() },
        ..TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(0.01))
    };
    Model::train(spec.architecture, &options, &LossOptions::default(), &config, 2).unwrap()
}

fn mini_bert(ranks: usize) -> Model {
    let config =
        BertConfig { vocab_size: 200, num_hidden_layers: 2, max_position_embeddings: 16, ..BertConfig::tiny() };
    let sequences = Sequences { batch: 2, length: 8, predictions: 2 };
    let train = TrainConfig {
        clip: Some(Clip { limit: 1.0, form: ClipForm::PyTorch, of: ClipOf::Step }),
        accumulation: 4,
        ranks: Ranks { count: ranks, means: Over::Rank, ..Ranks::default() },
        ..TrainConfig::new(Optimizer::Lamb(Lamb::nvidia(0.01)), Schedule::constant(1e-3))
    };
    bert::train(&config, sequences, &BertOptions::default(), &train).unwrap()
}

fn pictures(name: &str, ty: &TensorType, batch: usize) -> Vec<u8> {
    content(name, ty, 10, batch)
}

fn sequences(name: &str, ty: &TensorType, batch: usize) -> Vec<u8> {
    let most = match name {
        "segment_ids" | "next_sentence_labels" | "input_mask" => 2,
        "masked_lm_positions" => 8,
        _ => 200,
    };
    content(name, ty, most, batch)
}

/// Two ranks with two micro-batches each make of a model what one rank makes with four, launched and replayed, and of both the same
/// bits.
fn two_ranks_are_one(test: &str, model: fn(usize) -> Model, run: &Run, feed: Feed<'_>, counts: fn(&str) -> bool) {
    let Some(folder) = mock_or_skip(test) else { return };
    let one = on_gpu(test, &model(1), run, feed).unwrap();
    let of_two = model(2);
    let mut all: Vec<Outcome> = Vec::new();
    for eager in [false, true] {
        all.extend(in_ranks(folder, (2, eager), |device, rank, _| {
            train_rank(device, device.target(), &of_two, run, (rank, 2), &|name, ty, batch| match test {
                "two_ranks_train_a_resnet" => pictures(name, ty, batch),
                _ => sequences(name, ty, batch),
            })
        }));
    }
    assert!(all.iter().all(|outcome| outcome.is_as(&all[0], counts)), "{test}: ranks, or ways to run, differ");
    one.agrees(test, &all[0], run, counts);
}

/// Whether all ranks have the same: sums of micro-batches are their own.
fn is_shared(name: &str) -> bool {
    !name.starts_with("accumulate")
}

/// Running statistics are averaged over ranks, and updated one after the other by one rank.
#[test]
fn two_ranks_train_a_resnet() {
    let run = Run { steps: 3, micro_batches: 4, of_scalars: 1e-5, of_state: 2e-5, ..Run::DEFAULT };
    two_ranks_are_one("two_ranks_train_a_resnet", resnet, &run, &pictures, |name| {
        !name.contains("running") && is_shared(name)
    });
}

#[test]
fn two_ranks_train_a_bert() {
    let run = Run { steps: 3, micro_batches: 4, of_scalars: 1e-5, of_state: 1e-4, ..Run::DEFAULT };
    two_ranks_are_one("two_ranks_train_a_bert", mini_bert, &run, &sequences, is_shared);
}

/// A rank that waits for one which is gone ends with what the job says of it, at once, and its state is that behind the last whole
/// step, although the device ran the one that failed to its end.
#[test]
fn a_lost_rank_ends_the_wait_and_leaves_state_whole() {
    let Some(folder) = mock_or_skip("a_lost_rank_ends_the_wait_and_leaves_state_whole") else { return };
    for eager in [true, false] {
        let is_fed = AtomicBool::new(false);
        let ends = in_ranks(folder, (2, eager), |device, rank, job| {
            let graph = several_sums(2, Wire::F32);
            let plan = compile(&graph, &CudaTarget, &CompileOptions::default()).unwrap();
            let state = device.new_state(StateLayout::of_plan(&plan)).unwrap();
            write_f32(&*state, "total", &[0.0; 700]).unwrap();
            let mut executor = device.load(plan, &state, &StateBinding::default()).unwrap();
            for step in 0..3 {
                executor.feed(&[("x", &bytes(&numbers(rank, step)))]).unwrap();
                executor.run().unwrap();
            }
            let total = read_f32(&*state, "total").unwrap();
            if rank == 1 {
                let begun = Instant::now();
                while !is_fed.load(Ordering::SeqCst) {
                    assert!(begun.elapsed() < Duration::from_secs(60), "rank 0 does not get that far");
                    std::thread::sleep(Duration::from_millis(10));
                }
                std::thread::sleep(Duration::from_millis(200));
                job.has_failed.store(true, Ordering::SeqCst);
                return (total, Duration::ZERO);
            }
            executor.feed(&[("x", &bytes(&numbers(rank, 3)))]).unwrap();
            is_fed.store(true, Ordering::SeqCst);
            let begun = Instant::now();
            let error = executor.run().unwrap_err().to_string();
            assert_eq!(error, "lost rank 1 (host b)", "eager {eager}");
            let waited = begun.elapsed();
            let error = executor.feed(&[("x", &bytes(&numbers(rank, 3)))]).unwrap_err().to_string();
            assert_eq!(error, "lost rank 1 (host b)");
            let after = read_f32(&*state, "total").unwrap();
            assert!(after == total, "eager {eager}: a step that failed replaced state");
            (total, waited)
        });
        assert!(ends[0].0 == ends[1].0);
        assert!(ends[0].1 < Duration::from_secs(20), "waited {:?}", ends[0].1);
    }
}

/// A step whose sums were all there gives its results though a rank was lost before they were asked for: its state is that behind the
/// step. The next call says what the job says.
#[test]
fn a_rank_that_is_lost_behind_the_sums_of_a_step_leaves_it_whole() {
    let Some(folder) = mock_or_skip("a_rank_that_is_lost_behind_the_sums_of_a_step_leaves_it_whole") else { return };
    for eager in [true, false] {
        let are_done = Barrier::new(2);
        in_ranks(folder, (2, eager), |device, rank, job| {
            let plan = compile(&several_sums(2, Wire::F32), &CudaTarget, &CompileOptions::default()).unwrap();
            let state = device.new_state(StateLayout::of_plan(&plan)).unwrap();
            write_f32(&*state, "total", &[0.0; 700]).unwrap();
            let mut executor = device.load(plan, &state, &StateBinding::default()).unwrap();
            let mut total = vec![0.0f32; 700];
            for step in 0..3 {
                executor.feed(&[("x", &bytes(&numbers(rank, step)))]).unwrap();
                let ticket = executor.submit().unwrap();
                for (i, total) in total.iter_mut().enumerate() {
                    *total += 4.0 * numbers(0, step)[i] + 4.0 * numbers(1, step)[i];
                }
                let after = read_f32(&*state, "total").unwrap();
                close(&format!("eager {eager}: state behind step {step}"), &after, &total, 1e-6);
                if step == 2 {
                    are_done.wait();
                    job.has_failed.store(true, Ordering::SeqCst);
                    let begun = Instant::now();
                    while executor.feed(&[("x", &bytes(&numbers(rank, 3)))]).is_ok() {
                        assert!(begun.elapsed() < Duration::from_secs(20), "the failure is not seen");
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
                executor.collect(ticket).unwrap();
            }
        });
    }
}

/// Tensors of rank 0 reach the others by the devices themselves.
#[test]
fn ranks_take_over_the_state_of_the_first() {
    let Some(folder) = mock_or_skip("ranks_take_over_the_state_of_the_first") else { return };
    let read = in_ranks(folder, (3, false), |device, rank, _| {
        let plan = compile(&several_sums(3, Wire::F32), &CudaTarget, &CompileOptions::default()).unwrap();
        let state = device.new_state(StateLayout::of_plan(&plan)).unwrap();
        write_f32(&*state, "total", &numbers(rank, 0)).unwrap();
        assert!(state.take_from_first("total").unwrap());
        read_f32(&*state, "total").unwrap()
    });
    assert!(read.iter().all(|state| *state == numbers(0, 0)));
}

#[test]
fn a_plan_for_other_ranks_is_refused() {
    let Some(folder) = mock_or_skip("a_plan_for_other_ranks_is_refused") else { return };
    let errors = in_ranks(folder, (2, false), |device, _, _| {
        let plan = compile(&several_sums(3, Wire::F32), &CudaTarget, &CompileOptions::default()).unwrap();
        let device: &dyn Device = device;
        device.load_alone(plan).err().unwrap().to_string()
    });
    assert_eq!(errors, ["the plan is for 3 ranks; the device is one of 2"; 2]);
}

/// A convolution and a product, and what is fused with them.
fn chosen_for() -> Graph {
    let mut g = Graph::new();
    let feed = |g: &mut Graph, name: &str, shape: &[usize]| g.input(name, Role::Feed, TensorType::f32(shape)).unwrap();
    let (x, w) = (feed(&mut g, "x", &[2, 6, 6, 4]), feed(&mut g, "w", &[3, 3, 4, 8]));
    let y = g.push1(Op::from(Conv2d::new([1, 1], [[1, 1], [1, 1]])), &[x, w]).unwrap();
    let rows = g.reshape(y, [72, 8]).unwrap();
    let (u, bias) = (feed(&mut g, "u", &[8, 6]), feed(&mut g, "bias", &[6]));
    let product = g.push1(Op::from(Matmul { trans_a: false, trans_b: false }), &[rows, u]).unwrap();
    let biased = g.add(product, bias).unwrap();
    g.output("biased", biased);
    g
}

/// On each rank another engine and algorithm is the fastest; all take those of rank 0, which alone keeps them. A rank whose library is
/// another one chooses for itself, and says so.
#[test]
fn ranks_take_the_engines_and_algorithms_of_the_first() {
    let Some(folder) = mock_or_skip("ranks_take_the_engines_and_algorithms_of_the_first") else { return };
    let libraries = ["libcudnn.so.9", "libcublasLt.so.13"];
    for (slow_rank, newer) in [(0, false), (1, false), (0, true)] {
        let scratch = tempfile::tempdir().unwrap();
        let file = |rank: usize| scratch.path().join(format!("{rank}.json"));
        let of_rank = |rank: usize| {
            for library in libraries {
                let (slow, fast) =
                    if rank == slow_rank { ("slow_first", "slow_others") } else { ("slow_others", "slow_first") };
                let knobs = Knobs::of(folder, library);
                knobs.set(slow, 1);
                knobs.set(fast, 0);
            }
            Knobs::of(folder, libraries[0]).set("newer", i64::from(newer && rank == 1));
            CudaOptions { tuning: Some(file(rank)), ..options(folder, false) }
        };
        let of_ranks = in_ranks_of(2, of_rank, |device, _, _| {
            let device: &dyn Device = device;
            let names = device.load_alone(device::plan(&chosen_for())).unwrap().algorithms();
            // Nothing is left to choose for what was loaded before.
            assert_eq!(device.load_alone(device::plan(&chosen_for())).unwrap().algorithms(), names);
            (names, device.take_warnings())
        });
        let [(first, said_first), (second, said)] = &of_ranks[..] else { panic!("two ranks") };
        let what = format!("rank {slow_rank} is slow, newer {newer}: {first:?}, {second:?}");
        assert_eq!(first.len(), 2, "{what}");
        let engine = first.values().find(|name| name.contains("cuDNN")).unwrap();
        let expected = if slow_rank == 0 {
            "engine 8 in configuration 1 of cuDNN"
        } else {
            "engine 7 in configuration 0 of cuDNN"
        };
        assert_eq!(engine, expected, "{what}");
        assert_eq!(said_first, &[""; 0]);
        if newer {
            let differs = |name: &&String| first[*name] != second[*name];
            assert_eq!(first.keys().filter(differs).count(), 1, "{what}");
            let expected = "this rank chooses its own engines of convolutions, so that";
            let versions = "it has NVIDIA H200 (mock), driver 13000, cuDNN 91901, rank 0 NVIDIA H200 (mock), driver 13000, cuDNN 91900";
            assert!(said.len() == 1 && said[0].starts_with(expected) && said[0].ends_with(versions), "{said:?}");
        } else {
            assert_eq!((first, said), (second, said_first), "{what}");
            assert!(file(0).exists() && !file(1).exists(), "{what}");
        }
    }
}
