//! Steps of pre-training: what is hidden, drawn, replaced and evaluated.

use crate::support::{SEQUENCES, batch, close, interpreter, number, options, set_weights, sgd, small, still};
use bessemer_ir::reference::Interpreter;
use bessemer_ir::{Op, philox};
use bessemer_models::Model;
use bessemer_models::bert::{BertConfig, Sequences};
use bessemer_models::electra::names::{in_discriminator, in_generator};
use bessemer_models::electra::{
    ElectraConfig, ElectraOptions, Generator, PretrainingOptions, evaluate, infer_discriminator, infer_generator, train,
};

/// The first sequence of the batch alone: for it a step of training and an evaluation draw the same samples.
const ONE: Sequences = Sequences { batch: 1, ..SEQUENCES };

#[test]
fn steps_agree_with_each_other() {
    let step = train(&still(small()), ONE, &options(), &sgd()).expect("legal");
    let mut trained = interpreter(&step);
    let evaluation = evaluate(&small(), ONE, &options()).expect("legal");
    let mut evaluated = interpreter(&evaluation);
    trained.run();
    evaluated.run();
    let sum = |name: &str| number(&evaluated, name);
    assert_eq!((sum("mlm_weight"), sum("disc_weight")), (3.0, 5.0));
    close(number(&trained, "mlm_loss"), sum("mlm_loss_sum") / 3.000_001);
    close(number(&trained, "disc_loss"), sum("disc_loss_sum") / 5.000_001);
    close(number(&trained, "loss"), number(&trained, "mlm_loss") + 50.0 * number(&trained, "disc_loss"));
    close(number(&trained, "mlm_accuracy"), sum("mlm_correct") / 3.0);
    close(number(&trained, "sampled_accuracy"), sum("sampled_correct") / 3.0);
    close(number(&trained, "disc_accuracy"), sum("disc_correct") / 5.0);
    close(number(&trained, "disc_recall"), sum("disc_found") / sum("disc_replaced"));
    close(number(&trained, "disc_precision"), sum("disc_found") / sum("disc_suspected").max(1.0));
    assert_eq!(sum("disc_correct"), 5.0 - sum("disc_replaced") - sum("disc_suspected") + 2.0 * sum("disc_found"));
    assert!(sum("disc_replaced") >= 1.0, "nearly every sample is another word");
}

/// The graph that the discriminator sees the replaced text through, from outside: scores of the text as it would be.
fn verdicts(evaluation: &Interpreter<'_>, joint: &Model, words: &[f64]) -> Vec<f64> {
    let single = infer_discriminator(&small(), SEQUENCES, &ElectraOptions::default()).expect("legal");
    let mut run = interpreter(&single);
    for spec in &joint.specs {
        if let Some(name) = in_discriminator(&spec.name) {
            run.set(name, &evaluation.input(&spec.name).data);
        }
    }
    run.set("input_ids", words);
    run.run();
    run.output("disc_logits").data.clone()
}

#[test]
fn samples_take_the_places_of_words() {
    let evaluation = evaluate(&small(), SEQUENCES, &PretrainingOptions { generator: Generator::Uniform, ..options() })
        .expect("legal");
    let mut run = interpreter(&evaluation);
    run.set("first_example", &[9.0]);
    run.run();
    let streams: Vec<_> = evaluation
        .graph
        .nodes()
        .iter()
        .filter_map(|node| match &node.op {
            Op::Random(random) => Some((random.seed, random.stream)),
            _ => None,
        })
        .collect();
    let &[(seed, stream), second] = streams.as_slice() else { panic!("a node each draws samples, not {streams:?}") };
    assert_eq!(second, (seed, stream), "sequences are distinguished by their numbers alone");
    let sample = |row: u32| 29.0 * f64::from(philox::uniform(seed, 9 + row / 4, stream, u64::from(row % 4)));
    let samples: Vec<f64> = (0..8).map(|row| sample(row).floor()).collect();
    let mut words = run.input("input_ids").data.clone();
    let original = words.clone();
    words[2] = ((samples[0] + samples[2]) / 2.0).floor();
    words[3] = samples[1];
    words[6 + 4] = ((samples[4] + samples[5] + samples[6]) / 3.0).floor();
    let scores = verdicts(&run, &evaluation, &words);
    let mut loss = 0.0;
    for (i, score) in scores.iter().enumerate().filter(|(i, _)| i % 6 != 5) {
        let sign = if words[i] == original[i] { 1.0 } else { -1.0 };
        loss += (1.0 + (sign * score).exp()).ln();
    }
    close(number(&run, "disc_loss_sum"), loss);
    close(number(&run, "mlm_loss_sum"), 6.0 * 29f64.ln());
    let right = [2, 3, 2, 10, 10, 10].iter().zip([0, 1, 2, 4, 5, 6]).filter(|&(&at, row)| original[at] == samples[row]);
    assert_eq!(number(&run, "sampled_correct"), right.count() as f64);
}

#[test]
fn the_generator_sees_masks_and_the_discriminator_does_not() {
    let evaluation = evaluate(&small(), SEQUENCES, &options()).expect("legal");
    let mut run = interpreter(&evaluation);
    run.run();
    let generator = small().generator(0.25);
    let single = infer_generator(&generator, SEQUENCES, &ElectraOptions::default()).expect("legal");
    let mut alone = interpreter(&single);
    for spec in &evaluation.specs {
        if let Some(name) = in_generator(&spec.name) {
            alone.set(&name, &run.input(&spec.name).data);
        }
    }
    let words = run.input("input_ids").data.clone();
    let mut hidden = words.clone();
    hidden[2] = 4.0;
    alone.set("input_ids", &hidden);
    alone.run();
    let (places, weights) = (&run.input("masked_lm_positions").data, &run.input("masked_lm_weights").data);
    let mut loss = 0.0;
    for (row, scores) in alone.output("mlm_logits").data.chunks(29).enumerate() {
        let label = words[row / 4 * 6 + places[row] as usize];
        let total = scores.iter().map(|score| score.exp()).sum::<f64>().ln();
        loss += weights[row] * (total - scores[label as usize]);
    }
    close(number(&run, "mlm_loss_sum"), loss);
}

#[test]
fn the_right_word_can_be_disallowed() {
    let replaced = |disallow_correct: bool, vocab_size: usize| {
        let config = small();
        let config = ElectraConfig { encoder: BertConfig { vocab_size, ..config.encoder }, ..config };
        let evaluation =
            evaluate(&config, SEQUENCES, &PretrainingOptions { disallow_correct, ..options() }).expect("legal");
        let mut run = interpreter(&evaluation);
        let words: Vec<f64> = run.input("input_ids").data.iter().map(|word| word % vocab_size as f64).collect();
        run.set("input_ids", &words);
        (0..20)
            .map(|batch| {
                run.set("first_example", &[f64::from(2 * batch)]);
                run.run();
                number(&run, "sampled_correct")
            })
            .sum::<f64>()
    };
    assert!(replaced(false, 5) > 0.0, "one word of five is right by chance");
    assert_eq!(replaced(true, 5), 0.0);
}

#[test]
fn samples_do_not_depend_on_the_batches() {
    for generator in [Generator::Network, Generator::Uniform, Generator::Batch] {
        let options = PretrainingOptions { generator, ..options() };
        let both = evaluate(&small(), SEQUENCES, &options).expect("legal");
        let mut whole = interpreter(&both);
        whole.set("first_example", &[6.0]);
        whole.run();
        let one = evaluate(&small(), ONE, &options).expect("legal");
        let sums = (0..2).map(|example| {
            let mut run = Interpreter::new(&one.graph);
            set_weights(&mut run, &one);
            for (name, data) in batch(&both.graph) {
                let is_common = ["first_example", "log_frequencies"].contains(&name);
                let half = data.len() / 2;
                run.set(name, if is_common { &data } else { &data[example * half..][..half] });
            }
            run.set("first_example", &[6.0 + example as f64]);
            run.run();
            SUMS.map(|name| number(&run, name))
        });
        let parts: Vec<[f64; SUMS.len()]> = sums.collect();
        for (i, name) in SUMS.iter().enumerate() {
            close(number(&whole, name), parts[0][i] + parts[1][i]);
        }
        assert!(number(&whole, "disc_replaced") >= 2.0);
    }
}

const SUMS: [&str; 6] =
    ["mlm_loss_sum", "sampled_correct", "disc_loss_sum", "disc_replaced", "disc_correct", "disc_suspected"];

#[test]
fn random_numbers_have_streams_of_their_own() {
    let step = train(&small(), SEQUENCES, &options(), &sgd()).expect("every parameter reaches the loss");
    let mut streams = Vec::new();
    for node in step.graph.nodes() {
        match &node.op {
            Op::Random(random) => streams.push(random.stream),
            Op::Attention(attention) => streams.push(attention.dropout.expect("training drops probabilities").stream),
            _ => {}
        }
    }
    // One after each use of the embeddings and three a layer, for two networks; and the samples between them.
    assert_eq!(streams, (0..15).collect::<Vec<_>>());
}
