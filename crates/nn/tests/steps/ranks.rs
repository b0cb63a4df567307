//! Steps of several ranks, by reference interpreters in lockstep, beside one rank that takes all micro-batches.

use crate::accumulation::{Norm, SAMPLES, configs, feed, network, of_accumulation, outcome, start, step};
use crate::run::{Run, assert_close};
use bessemer_ir::passes::buckets::{BucketOptions, buckets};
use bessemer_ir::passes::schedule::schedule;
use bessemer_ir::reference::{Interpreter, run_ranks};
use bessemer_ir::{Graph, Op};
use bessemer_nn::{ParamKind, ParamSpec, Ranks, STOP, TrainConfig};

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
    for (index, rank) in ranks.iter_mut().enumerate() {
        for round in 0..micro_batches / count {
            feed(rank, number, (round * count + index) * size, size);
            if (round + 1) * count < micro_batches {
                rank.accumulate();
            }
        }
    }
    run_ranks(ranks);
}

#[test]
fn ranks_make_the_step_of_their_micro_batches() {
    for config in configs() {
        for (micro_batches, ranks) in [(2, 2), (3, 3), (4, 4), (4, 2), (6, 2), (6, 3)] {
            let size = SAMPLES / micro_batches;
            let (alone, specs) = network(size, Norm::Without, &of_accumulation(&config, micro_batches));
            let (graph, of_ranks) = network(size, Norm::Without, &of_ranks(&config, micro_batches, ranks));
            let packed = buckets(&graph, BucketOptions { first_bytes: 64, bytes: 256, overlap: true }).unwrap();
            let packed = schedule(&packed).unwrap();
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
