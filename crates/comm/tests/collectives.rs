//! Collectives over memory: bits of all-reduces against a plain formula, any number of ranks, any order of messages.

mod support;

use bessemer_comm::CommError;
use bessemer_comm::engine::Engine;
use bessemer_comm::exchange::AllGather;
use bessemer_comm::memory::{MemoryTransport, ranks, shuffled_ranks};
use bessemer_comm::probe::LinkProbe;
use bessemer_comm::reduce::{AllReduce, Reduction, Wire, chunks};
use bessemer_comm::rendezvous::LateWatch;
use bessemer_comm::transport::{Request, Transport, complete};
use bessemer_philox::{Stream, halves};
use half::{bf16, f16};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::elements;

/// Runs one thread a rank; results by rank.
fn on_ranks<T: Send>(ends: Vec<MemoryTransport>, work: impl Fn(MemoryTransport) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ends.into_iter().map(|end| scope.spawn(|| work(end))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn rounded(wire: Wire, value: f32) -> f32 {
    match wire {
        Wire::F32 => value,
        Wire::Bf16 => bf16::from_f32(value).to_f32(),
        Wire::F16 => f16::from_f32(value).to_f32(),
    }
}

/// The definition, one element at a time.
fn expected(inputs: &[Vec<f32>], wire: Wire, reduction: Reduction) -> Vec<f32> {
    let element = |index: usize| {
        let values = inputs.iter().map(|input| rounded(wire, input[index]));
        let result = match reduction {
            Reduction::Sum => values.fold(0.0, |sum, value| sum + value),
            Reduction::Max => {
                values.reduce(|max, value| if value > max || value.is_nan() { value } else { max }).unwrap()
            }
        };
        rounded(wire, result)
    };
    (0..inputs[0].len()).map(element).collect()
}

/// Bits, with one NaN for all.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
}

fn all_reduce(end: &mut MemoryTransport, elements: &mut [f32], wire: Wire, reduction: Reduction, sequence: u32) {
    let mut operation = AllReduce::new(&[elements], wire, reduction, end.rank(), end.size());
    complete(&mut operation, end, sequence, &|| Ok(())).unwrap();
    assert_eq!(end.open_requests(), 0);
    operation.finish(&mut [elements]);
}

fn wires() -> impl Strategy<Value = Wire> {
    prop_oneof![Just(Wire::F32), Just(Wire::Bf16), Just(Wire::F16)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Several tensors in one message have the bits that they have one behind the other.
    #[test]
    fn tensors_of_one_message_are_not_mixed(
        size in 1_usize..=4,
        lengths in proptest::collection::vec(0_usize..200, 1..9),
        seed: u64,
        wire in wires(),
    ) {
        let inputs: Vec<Vec<f32>> = (0..size).map(|rank| elements(seed, rank, lengths.iter().sum())).collect();
        let results = on_ranks(ranks(size), |mut end| {
            let mut rest = inputs[end.rank()].clone();
            let mut tensors: Vec<Vec<f32>> = lengths.iter().map(|&length| rest.drain(..length).collect()).collect();
            let given: Vec<&[f32]> = tensors.iter().map(Vec::as_slice).collect();
            let mut operation = AllReduce::new(&given, wire, Reduction::Sum, end.rank(), end.size());
            complete(&mut operation, &mut end, 0, &|| Ok(())).unwrap();
            let mut places: Vec<&mut [f32]> = tensors.iter_mut().map(Vec::as_mut_slice).collect();
            operation.finish(&mut places);
            tensors.concat()
        });
        let expected = bits(&expected(&inputs, wire, Reduction::Sum));
        prop_assert!(results.iter().all(|result| bits(result) == expected));
    }

    #[test]
    fn all_reduce_has_the_bits_of_the_formula(
        size in 1_usize..=5,
        length in prop_oneof![0_usize..330, 330_usize..1500],
        seed: u64,
        wire in wires(),
        reduction in prop_oneof![3 => Just(Reduction::Sum), 1 => Just(Reduction::Max)],
        shuffled: bool,
    ) {
        let inputs: Vec<Vec<f32>> = (0..size).map(|rank| elements(seed, rank, length)).collect();
        let ends = if shuffled { shuffled_ranks(size, seed) } else { ranks(size) };
        let results = on_ranks(ends, |mut end| {
            let mut values = inputs[end.rank()].clone();
            all_reduce(&mut end, &mut values, wire, reduction, 0);
            values
        });
        let expected = bits(&expected(&inputs, wire, reduction));
        for result in &results {
            prop_assert_eq!(&bits(result), &expected);
            // The others hold the very bits that one rank computed, NaN included.
            prop_assert!(result.iter().zip(&results[0]).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }

    #[test]
    fn chunks_cover_all_elements_in_multiples_of_64(length in 0_usize..10_000, ranks in 1_usize..=64) {
        let chunks = chunks(length, ranks);
        prop_assert_eq!(chunks.len(), ranks);
        let mut end = 0;
        for chunk in &chunks {
            prop_assert!(chunk.start == end && (chunk.start % 64 == 0 || chunk.is_empty()));
            end = chunk.end;
        }
        prop_assert_eq!(end, length);
        prop_assert!(chunks[0].len() <= length.div_ceil(ranks) + 63);
    }

    #[test]
    fn byte_strings_reach_all_ranks(size in 1_usize..=5, root in 0_usize..5, seed: u64) {
        let root = root % size;
        let mut stream = Stream::new(halves(seed), [2, 0, 0]);
        let inputs: Vec<Vec<u8>> = (0..size)
            .map(|_| (0..stream.below(4) * stream.below(100)).map(|_| stream.next_u32() as u8).collect())
            .collect();
        on_ranks(shuffled_ranks(size, seed), |mut end| {
            let own = inputs[end.rank()].clone();
            let mut gather = AllGather::new(own.clone(), size);
            let mut broadcast = AllGather::broadcast(root, (end.rank() == root).then_some(own));
            complete(&mut gather, &mut end, 0, &|| Ok(())).unwrap();
            complete(&mut broadcast, &mut end, 1, &|| Ok(())).unwrap();
            assert_eq!(end.open_requests(), 0);
            assert_eq!(gather.into_parts(), inputs);
            assert_eq!(broadcast.into_parts(), vec![inputs[root].clone()]);
        });
    }

    /// Several buckets under way at once, waited for in another order on every rank, with gathers between.
    #[test]
    fn collectives_of_an_engine_overlap(size in 1_usize..=4, seed: u64) {
        let lengths: Vec<usize> = (0..6).map(|bucket| 10 + bucket * 97).collect();
        let input = |rank: usize, bucket: usize| elements(seed ^ bucket as u64, rank, lengths[bucket]);
        let results = on_ranks(shuffled_ranks(size, seed), |end| {
            let rank = end.rank();
            let engine = Engine::start(slot(end), Box::new(|| Ok(()))).unwrap();
            assert_eq!((engine.rank(), engine.size()), (rank, size));
            let mut started: Vec<_> = (0..6)
                .map(|bucket| (bucket, engine.all_reduce(&[&input(rank, bucket)], Wire::F32, Reduction::Sum)))
                .collect();
            let parts = engine.all_gather(vec![rank as u8]).unwrap();
            assert_eq!(parts, (0..size).map(|rank| vec![rank as u8]).collect::<Vec<_>>());
            started.rotate_left(rank);
            let mut outputs = vec![Vec::new(); 6];
            for (bucket, started) in started {
                outputs[bucket] = vec![f32::NAN; lengths[bucket]];
                started.wait().unwrap().finish(&mut [&mut outputs[bucket]]);
            }
            outputs
        });
        for bucket in 0..6 {
            let inputs: Vec<Vec<f32>> = (0..size).map(|rank| input(rank, bucket)).collect();
            for result in &results {
                prop_assert_eq!(bits(&result[bucket]), bits(&expected(&inputs, Wire::F32, Reduction::Sum)));
            }
        }
    }
}

/// Hands an end over to the communication thread.
fn slot(end: MemoryTransport) -> bessemer_comm::engine::Open {
    Box::new(move || Ok(Box::new(end) as Box<dyn Transport>))
}

#[test]
fn sums_begin_at_plus_zero_and_keep_the_order_of_ranks() {
    let big = 1e8_f32;
    let inputs = [[-0.0, big, 1.0], [-0.0, 1.0, big], [-0.0, -big, -big]];
    let results = on_ranks(shuffled_ranks(3, 5), |mut end| {
        let mut values = inputs[end.rank()];
        all_reduce(&mut end, &mut values, Wire::F32, Reduction::Sum, 9000);
        values
    });
    for [zero, first, second] in results {
        assert_eq!(zero.to_bits(), 0);
        assert_eq!((first, second), (0.0, 0.0));
    }
    let one = on_ranks(ranks(1), |mut end| {
        let mut values = [-0.0, 1.0 + 1e-6];
        all_reduce(&mut end, &mut values, Wire::Bf16, Reduction::Sum, 0);
        values.map(f32::to_bits)
    });
    assert_eq!(one, [[0, 1_f32.to_bits()]]);
}

#[test]
fn a_probe_leaves_no_request_open() {
    for seed in 0..4 {
        on_ranks(shuffled_ranks(2, seed), |mut end| {
            complete(&mut LinkProbe::new([1, 0]), &mut end, 0, &|| Ok(())).unwrap();
            assert_eq!(end.open_requests(), 0);
        });
    }
}

#[test]
fn links_are_probed_between_two_ranks() {
    let links = on_ranks(ranks(3), |end| {
        let engine = Engine::start(slot(end), Box::new(|| Ok(()))).unwrap();
        let link = engine.probe([2, 0]).unwrap();
        // The engine goes on.
        assert_eq!(engine.all_gather(vec![7]).unwrap(), [[7], [7], [7]]);
        link
    });
    assert_eq!((links[0], links[1]), (None, None));
    let link = links[2].unwrap();
    assert!(link.latency < 1.0 && link.bandwidth > 1e6 && link.bandwidth.is_finite(), "{link:?}");
}

#[test]
fn a_lost_rank_ends_the_wait_of_the_others() {
    let outcome = on_ranks(ranks(3), |end| {
        if end.rank() == 1 {
            return None;
        }
        let engine = Engine::start(slot(end), Box::new(|| Ok(()))).unwrap();
        let values = vec![1.5; 300];
        let error = engine.all_reduce(&[&values], Wire::F32, Reduction::Sum).wait().err().expect("a rank is lost");
        assert!(values.iter().all(|&value| value == 1.5));
        // What comes later fails in the same way, at once.
        assert_eq!(engine.all_gather(Vec::new()), Err(error.clone()));
        Some(error)
    });
    for rank in [0, 2] {
        // Rank 0 waits for rank 2 as well, which may give up first.
        let error = outcome[rank].clone().unwrap();
        assert!(matches!(error, CommError::Disconnected { rank: lost } if lost != rank), "{error}");
    }
}

#[test]
fn the_watch_ends_what_is_under_way() {
    let lost = Arc::new(AtomicBool::new(false));
    let mut ends = ranks(2);
    let silent = ends.pop().unwrap();
    let seen = lost.clone();
    let watch = move || if seen.load(Ordering::Relaxed) { Err(CommError::Disconnected { rank: 1 }) } else { Ok(()) };
    let engine = Engine::start(slot(ends.pop().unwrap()), Box::new(watch)).unwrap();
    let first = engine.all_reduce(&[&[1.0; 200]], Wire::F16, Reduction::Sum);
    let second = engine.all_reduce(&[&[1.0; 200]], Wire::F32, Reduction::Max);
    std::thread::sleep(Duration::from_millis(20));
    lost.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    assert_eq!(first.wait().err(), Some(CommError::Disconnected { rank: 1 }));
    assert_eq!(second.wait().err(), Some(CommError::Disconnected { rank: 1 }));
    assert!(begun.elapsed() < Duration::from_secs(2));
    drop((engine, silent));
}

/// A transport that tells how it ends.
struct Told(MemoryTransport, Arc<AtomicBool>);

impl Transport for Told {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn send(&mut self, to: usize, tag: u16, bytes: Arc<Vec<u8>>) -> Result<Request, CommError> {
        self.0.send(to, tag, bytes)
    }

    fn receive(&mut self, from: usize, tag: u16, length: usize) -> Result<Request, CommError> {
        self.0.receive(from, tag, length)
    }

    fn test(&mut self, request: Request) -> Result<Option<Vec<u8>>, CommError> {
        self.0.test(request)
    }

    fn progress(&mut self) {
        self.0.progress();
    }

    fn cancel(&mut self) {
        self.1.store(true, Ordering::Relaxed);
        self.0.cancel();
    }
}

#[test]
fn a_transport_is_cancelled_if_the_job_failed_while_nothing_was_under_way() {
    for failed in [false, true] {
        let cancelled = Arc::new(AtomicBool::new(false));
        let told = Told(ranks(1).remove(0), cancelled.clone());
        let watch = move || if failed { Err(CommError::Cancelled) } else { Ok(()) };
        let engine = Engine::start(Box::new(move || Ok(Box::new(told))), Box::new(watch)).unwrap();
        drop(engine);
        assert_eq!(cancelled.load(Ordering::Relaxed), failed);
    }
}

#[test]
fn ranks_end_together_unless_the_job_fails() {
    let cancelled = Arc::new(AtomicBool::new(false));
    let mut ends = ranks(2);
    let late = ends.pop().unwrap();
    let told = |end| Told(end, cancelled.clone());
    let first = told(ends.pop().unwrap());
    let engine = Engine::start(Box::new(move || Ok(Box::new(first))), Box::new(|| Ok(()))).unwrap();
    let ended = std::thread::spawn(move || drop(engine));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!ended.is_finished(), "it waits for the other");
    drop(Engine::start(slot(late), Box::new(|| Ok(()))).unwrap());
    ended.join().unwrap();
    assert!(!cancelled.load(Ordering::Relaxed));

    let mut ends = ranks(2);
    let _silent = ends.pop().unwrap();
    let first = told(ends.pop().unwrap());
    let begun = Instant::now();
    let watch = move || if begun.elapsed() > Duration::from_millis(50) { Err(CommError::Cancelled) } else { Ok(()) };
    drop(Engine::start(Box::new(move || Ok(Box::new(first))), Box::new(watch)).unwrap());
    assert!(cancelled.load(Ordering::Relaxed) && begun.elapsed() > Duration::from_millis(50));
}

#[test]
fn a_failing_start_is_reported() {
    let error = Engine::start(Box::new(|| Err(CommError::Cancelled)), Box::new(|| Ok(()))).err();
    assert_eq!(error, Some(CommError::Cancelled));
}

/// A transport that waits for a rank which never comes, as MPI does where one was killed before it had begun.
#[test]
fn a_start_without_end_is_given_up() {
    let (_kept, never) = channel::<()>();
    let open = move || never.recv().map_err(|_| CommError::Cancelled).map(|()| unreachable!("nobody sends"));
    let watch = LateWatch::new(Duration::from_millis(300));
    let error = Engine::start(Box::new(open), Box::new(move || watch.check())).err();
    assert_eq!(error, Some(CommError::NotMet { seconds: "0.3".to_owned() }));
}

#[test]
fn ranks_of_different_plans_are_told() {
    let errors = Mutex::new(Vec::new());
    on_ranks(ranks(2), |mut end| {
        let length = if end.rank() == 0 { 100 } else { 120 };
        let mut operation = AllReduce::new(&[&vec![1.0; length]], Wire::F32, Reduction::Sum, end.rank(), 2);
        if let Err(error) = complete(&mut operation, &mut end, 0, &|| Ok(())) {
            errors.lock().unwrap().push(error);
            assert!(matches!(end.send(0, 0, Arc::default()), Err(CommError::Cancelled)));
        }
    });
    let errors = errors.into_inner().unwrap();
    assert!(errors.iter().any(|error| matches!(error, CommError::MessageLength { .. })), "{errors:?}");
}

#[test]
fn too_long_messages_are_refused() {
    let mut end = ranks(1).pop().unwrap();
    let error = end.receive(0, 0, (1 << 30) + 1).unwrap_err();
    assert_eq!(error.to_string(), "a message of 1073741825 bytes; at most 1073741824 are allowed");
}
