//! Steps of several ranks, by reference interpreters in lockstep, beside one rank that takes all micro-batches.

use crate::accumulation::{Norm, SAMPLES, configs, feed, network, of_accumulation, outcome, start, step};
use crate::run::{Run, assert_close};
use bessemer_ir::passes::buckets::{BucketOptions, buckets};
use bessemer_ir::passes::schedule::schedule;
use bessemer_ir::reference::{Interpreter, accumulate_ranks, run_ranks};
use bessemer_ir::rules::Rules;
use bessemer_ir::{DType, Graph, Op};
use bessemer_nn::loss::{WeightedRows, masked_cross_entropy};
use bessemer_nn::train_step::build_train_step;
use bessemer_nn::{Builder, Linear, LinearOptions, MaskedMean, Over, ParamKind, ParamSpec, Ranks, STOP, TrainConfig};

/// Larger than any number of `f64` that only the order of sums can move.
const ROUNDING: f64 = 1e-12;

fn of_ranks(config: &TrainConfig, micro_batches: usize, ranks: usize) -> TrainConfig {
    TrainConfig { ranks: Ranks { count: ranks, ..Ranks::default() }, ..of_accumulation(config, micro_batches) }
}

fn begin<'a>(graph: &'a Graph, specs: &[ParamSpec], ranks: usize) -> Vec<Interpreter<'a>> {
    let begun = |rank: usize| {
        let mut run = Interpreter::new(graph);
        start(&mut run, specs);
        run.set("micro_step", &[rank as f64]);
        run
    };
    (0..ranks).map(begun).collect()
}

/// A step in which rank `r` takes the micro-batches `r`, `r + ranks`, ...
fn step_of_ranks(ranks: &mut [Interpreter<'_>], number: usize, micro_batches: usize) {
    let (count, size) = (ranks.len(), SAMPLES / micro_batches);
    for round in 0..micro_batches / count {
        for (index, rank) in ranks.iter_mut().enumerate() {
            feed(rank, number, (round * count + index) * size, size);
        }
        let is_last = (round + 1) * count == micro_batches;
        if is_last { run_ranks(ranks) } else { accumulate_ranks(ranks) }
    }
}

#[test]
fn ranks_make_the_step_of_their_micro_batches() {
    for config in configs() {
        for (micro_batches, ranks) in [(2, 2), (3, 3), (4, 4), (4, 2), (6, 2), (6, 3)] {
            let size = SAMPLES / micro_batches;
            let (alone, specs) = network(size, Norm::Without, &of_accumulation(&config, micro_batches));
            let (graph, of_ranks) = network(size, Norm::Without, &of_ranks(&config, micro_batches, ranks));
            let packed = buckets(&graph, BucketOptions { first_bytes: 64, bytes: 256, overlap: true }).unwrap();
            let packed = schedule(&packed, &Rules::DEFAULT).unwrap();
            let starts = packed.ids().filter(|&id| matches!(packed.node(id).op, Op::AllReduceStart(_))).count();
            assert!(starts > 3, "{starts}");
            for graph in [&graph, &packed] {
                let mut alone = begin(&alone, &specs, 1);
                let mut all = begin(graph, &of_ranks, ranks);
                for number in 0..3 {
                    step(&mut alone[0], number, micro_batches);
                    step_of_ranks(&mut all, number, micro_batches);
                    let expected = outcome(&alone[0], &specs);
                    for (rank, run) in all.iter().enumerate() {
                        let what = format!("{:?}, {micro_batches} on {ranks}, step {number}", config.optimizer);
                        for ((name, actual), (_, expected)) in outcome(run, &of_ranks).iter().zip(&expected) {
                            match micro_batches == ranks {
                                true => assert_eq!(actual, expected, "{what}: {name}"),
                                false => assert_close(&format!("{what}: {name}"), actual, expected, ROUNDING),
                            }
                        }
                        assert_eq!(run.state("micro_step"), [(micro_batches * (number + 1) + rank) as f64], "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn running_statistics_are_those_of_all_micro_batches() {
    let config = &configs()[0];
    let (alone, specs) = network(SAMPLES / 4, Norm::Batch, &of_accumulation(config, 1));
    // What each micro-batch alone makes of the first statistics.
    let of_one = |micro_batch: usize| {
        let mut run = begin(&alone, &specs, 1).remove(0);
        feed(&mut run, 0, micro_batch * SAMPLES / 4, SAMPLES / 4);
        run.run();
        let statistics = specs.iter().filter(|spec| spec.kind == ParamKind::Statistic);
        statistics.map(|spec| (spec.name.clone(), run.state(&spec.name))).collect::<Vec<_>>()
    };
    let each: Vec<_> = (0..4).map(of_one).collect();
    for ranks in [2, 4] {
        let (graph, specs) = network(SAMPLES / 4, Norm::Batch, &of_ranks(config, 4, ranks));
        let mut all = begin(&graph, &specs, ranks);
        step_of_ranks(&mut all, 0, 4);
        for (index, (name, _)) in each[0].iter().enumerate() {
            let mean: Vec<f64> = (0..each[0][index].1.len())
                .map(|element| each.iter().map(|one| one[index].1[element]).sum::<f64>() / 4.0)
                .collect();
            all.iter().for_each(|run| assert_close(name, &run.state(name), &mean, ROUNDING));
        }
    }
}

#[test]
fn a_bad_micro_batch_of_one_rank_changes_nothing_anywhere() {
    for (config, norm) in [(&configs()[0], Norm::Batch), (&configs()[2], Norm::Without)] {
        let (graph, specs) = network(SAMPLES / 2, norm, &of_ranks(config, 2, 2));
        let mut all = begin(&graph, &specs, 2);
        let kept = |run: &Interpreter<'_>| -> Vec<(String, Vec<f64>)> {
            let kept = specs.iter().filter(|spec| !["micro_step", "loss_scale"].contains(&spec.name.as_str()));
            kept.map(|spec| (spec.name.clone(), run.state(&spec.name))).collect()
        };
        let before = kept(&all[0]);
        all.iter_mut().enumerate().for_each(|(rank, run)| feed(run, 0, rank, SAMPLES / 2));
        let mut images = all[1].input("images").data.clone();
        images[5] = f64::NAN;
        all[1].set("images", &images);
        run_ranks(&mut all);
        for run in &all {
            assert!(run.output("loss").data[0].is_nan());
            assert_eq!(kept(run), before);
        }
    }
}

#[test]
fn every_rank_learns_of_a_wish_to_stop() {
    let (graph, specs) = network(SAMPLES / 3, Norm::Without, &of_ranks(&configs()[0], 3, 3));
    let mut all = begin(&graph, &specs, 3);
    all[1].set(STOP, &[1.0]);
    step_of_ranks(&mut all, 0, 3);
    all.iter().for_each(|run| assert_eq!(run.output(STOP).data, [1.0]));
}

/// Batch norms over all ranks: each round of the ranks is one micro-batch of their samples.
#[test]
fn norms_over_all_ranks_are_those_of_one_batch() {
    for config in configs() {
        for (micro_batches, ranks) in [(2, 2), (3, 3), (4, 2), (6, 3)] {
            let rounds = micro_batches / ranks;
            let (alone, specs) = network(SAMPLES / rounds, Norm::Batch, &of_accumulation(&config, rounds));
            let shared = of_ranks(&config, micro_batches, ranks);
            let shared = TrainConfig { ranks: Ranks { norms: Over::All, ..shared.ranks }, ..shared };
            let (graph, specs_of_ranks) = network(SAMPLES / micro_batches, Norm::Batch, &shared);
            let packed = buckets(&graph, BucketOptions { first_bytes: 64, bytes: 256, overlap: true }).unwrap();
            let packed = schedule(&packed, &Rules::DEFAULT).unwrap();
            for graph in [&graph, &packed] {
                let mut alone = begin(&alone, &specs, 1);
                let mut all = begin(graph, &specs_of_ranks, ranks);
                for number in 0..3 {
                    step(&mut alone[0], number, rounds);
                    step_of_ranks(&mut all, number, micro_batches);
                    // One rank moves running statistics with each micro-batch, several once a step.
                    let is_compared = |name: &str| rounds == 1 || !name.contains("norm.running");
                    let expected = outcome(&alone[0], &specs);
                    for run in &all {
                        let actual = outcome(run, &specs_of_ranks);
                        assert_eq!(actual.len(), expected.len());
                        for ((name, actual), (_, expected)) in actual.iter().zip(&expected) {
                            if is_compared(name) {
                                let what = format!("{:?}, {micro_batches} on {ranks}: {name}", config.optimizer);
                                assert_close(&what, actual, expected, ROUNDING);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A linear model whose rows have weights, which differ in sum from rank to rank.
fn weighted(rows: usize, config: &TrainConfig, mean: MaskedMean) -> (Graph, Vec<ParamSpec>) {
    let mut b = Builder::training(config.ranks);
    b.micro_step().unwrap();
    let x = b.feed("x", DType::F32, [rows, 4]).unwrap();
    let labels = b.feed("labels", DType::I32, [rows]).unwrap();
    let weights = b.feed("weights", DType::F32, [rows]).unwrap();
    let layer = Linear::new(&mut b, "fc", 4, LinearOptions::uniform(4, 3)).unwrap();
    let logits = layer.apply(&mut b, x).unwrap();
    let loss = masked_cross_entropy(&mut b, &WeightedRows { logits, labels, weights }, mean).unwrap();
    build_train_step(&mut b, loss, config).unwrap();
    b.finish()
}

fn feed_weighted(run: &mut Interpreter<'_>, from: usize, count: usize) {
    let rows = from..from + count;
    run.set("x", &rows.clone().flat_map(|row| (0..4).map(move |i| ((row * 5 + i * 3) % 7) as f64)).collect::<Vec<_>>());
    run.set("labels", &rows.clone().map(|row| (row % 3) as f64).collect::<Vec<_>>());
    run.set("weights", &rows.map(|row| [0.0, 1.0, 2.5, 0.5, 3.0][row % 5]).collect::<Vec<_>>());
}

#[test]
fn weighted_means_over_all_ranks_are_those_of_one_batch() {
    for mean in [MaskedMean::Torch, MaskedMean::TensorFlow, MaskedMean::Electra] {
        let loss_of = |over: Over| {
            let config = of_ranks(&configs()[0], 3, 3);
            let config = TrainConfig { ranks: Ranks { means: over, ..config.ranks }, ..config };
            let (alone, specs) = weighted(SAMPLES, &of_accumulation(&configs()[0], 1), mean);
            let (graph, specs_of_ranks) = weighted(SAMPLES / 3, &config, mean);
            let mut alone = begin(&alone, &specs, 1).remove(0);
            let mut all = begin(&graph, &specs_of_ranks, 3);
            feed_weighted(&mut alone, 0, SAMPLES);
            all.iter_mut().enumerate().for_each(|(rank, run)| feed_weighted(run, rank * SAMPLES / 3, SAMPLES / 3));
            alone.run();
            run_ranks(&mut all);
            let of = |run: &Interpreter<'_>| [run.output("loss").data.clone(), run.state("fc.weight")].concat();
            (all.iter().map(of).collect::<Vec<_>>(), of(&alone))
        };
        let (all, alone) = loss_of(Over::All);
        all.iter().for_each(|rank| assert_close(&format!("{mean:?}"), rank, &alone, ROUNDING));
        let (each, alone) = loss_of(Over::Rank);
        assert!((each[0][0] - alone[0]).abs() > 1e-3, "the ranks' weights differ: {} and {}", each[0][0], alone[0]);
    }
}
