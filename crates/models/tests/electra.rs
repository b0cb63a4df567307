//! ELECTRA: counts of the published sizes, graphs of all steps, names of checkpoints.

use bessemer_cpu::{CpuOptions, Executor};
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::reference::Interpreter;
use bessemer_ir::{DType, Op, philox};
use bessemer_models::bert::{BertConfig, BertInit, Sequences};
use bessemer_models::classifier::flops;
use bessemer_models::electra::names::{in_discriminator, in_generator, split};
use bessemer_models::electra::{
    ELECTRAS, ElectraConfig, ElectraOptions, PretrainingOptions, SpanHead, SquadOptions, evaluate, forward_loss,
    infer_discriminator, infer_generator, squad, train,
};
use bessemer_models::{Model, ModelError};
use bessemer_nn::{Kind, Optimizer, Schedule, Sgd, TrainConfig, initialise};

const SEQUENCES: Sequences = Sequences { batch: 2, length: 6, predictions: 4 };
const JOINT: SpanHead = SpanHead::Joint { beam: 3, may_be_impossible: true };
const THIRD: f64 = 1.0 / 3.0;

/// Sizes that the reference interpreter computes in no time.
fn small() -> ElectraConfig {
    let encoder = BertConfig {
        vocab_size: 29,
        hidden_size: 8,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 12,
        max_position_embeddings: 7,
        ..BertConfig::tiny()
    };
    ElectraConfig { embedding_size: 6, encoder }
}

fn still(config: ElectraConfig) -> ElectraConfig {
    let encoder = BertConfig { hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0, ..config.encoder };
    ElectraConfig { encoder, ..config }
}

fn options() -> PretrainingOptions {
    PretrainingOptions { mask_token: 4, ..PretrainingOptions::new(0.25) }
}

fn squad_options(head: SpanHead) -> SquadOptions {
    SquadOptions { network: ElectraOptions::default(), head }
}

fn sgd() -> TrainConfig {
    let rule = Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0, decay_exclude: Default::default() };
    TrainConfig::new(Optimizer::Sgd(rule), Schedule::constant(0.01))
}

fn parameters(model: &Model, wanted: impl Fn(&str) -> bool) -> usize {
    let trained = model.specs.iter().filter(|spec| spec.is_trainable() && wanted(&spec.name));
    trained.map(|spec| spec.ty.shape.elements()).sum()
}

/// Base with so many words.
fn base(vocab_size: usize) -> ElectraConfig {
    let base = ElectraConfig::base();
    ElectraConfig { encoder: BertConfig { vocab_size, ..base.encoder }, ..base }
}

#[test]
fn counts() {
    let sequences = Sequences { batch: 1, length: 128, predictions: 19 };
    let counts = |vocab_size: usize| {
        let model = evaluate(&base(vocab_size), sequences, &PretrainingOptions::new(THIRD)).expect("legal");
        [
            parameters(&model, |name| name.starts_with("electra.")),
            parameters(&model, |name| in_discriminator(name).is_some()),
            parameters(&model, |name| in_discriminator(name).is_none()),
            parameters(&model, |name| in_generator(name).is_some()),
            parameters(&model, |_| true),
        ]
    };
    assert_eq!(counts(30_522), [108_891_648, 109_483_009, 9_903_418, 33_740_602, 119_386_427]);
    assert_eq!(counts(30_528), [108_896_256, 109_487_617, 9_903_424, 33_745_216, 119_391_041]);

    let of_squad = |head: SpanHead, part: &str| {
        let model = squad::predict(&ElectraConfig::base(), 1, 384, &squad_options(head)).expect("legal");
        parameters(&model, |name| name.starts_with(part))
    };
    let head = SpanHead::Joint { beam: 5, may_be_impossible: true };
    let heads = ["start_logits.", "end_logits.", "answer_class."].map(|part| of_squad(head, part));
    assert_eq!(heads, [769, 1_182_721, 1_181_184]);
    let answerable = SpanHead::Joint { beam: 5, may_be_impossible: false };
    assert_eq!(of_squad(answerable, "answer_class."), 0);
    assert_eq!(of_squad(SpanHead::Plain, "qa_outputs."), 1538);
}

#[test]
fn arithmetic() {
    let base = ElectraConfig::base();
    let gmac = |model: Model| flops(&model.graph) as f64 / 2e9;
    let close = |actual: f64, expected: f64| assert!((actual - expected).abs() < 0.006 * expected, "{actual}");
    for (length, predictions, discriminator, body, vocabulary) in
        [(128, 19, 11.25, 1.33, 3.03), (512, 79, 48.6, 6.54, 12.1)]
    {
        let sequences = Sequences { batch: 1, length, predictions };
        let network = ElectraOptions::default();
        close(gmac(infer_discriminator(&base, sequences, &network).expect("legal")), discriminator);
        let head = vocabulary * predictions as f64 / length as f64;
        close(gmac(infer_generator(&base.generator(THIRD), sequences, &network).expect("legal")), body + head);
        let joint = evaluate(&base, sequences, &PretrainingOptions::new(THIRD)).expect("legal");
        close(gmac(joint), discriminator + body + head);
    }
    let encoder = squad::predict(&base, 1, 384, &squad_options(SpanHead::Plain)).expect("legal");
    close(gmac(encoder), 35.3);
}

#[test]
fn generators() {
    let size = |config: ElectraConfig, fraction: f64| {
        let generator = config.generator(fraction);
        let encoder = generator.encoder;
        assert_eq!(generator.embedding_size, config.embedding_size);
        [encoder.hidden_size, encoder.num_hidden_layers, encoder.num_attention_heads, encoder.intermediate_size]
    };
    assert_eq!(size(ElectraConfig::base(), 0.333_333_3), [256, 12, 4, 1024]);
    assert_eq!(size(ElectraConfig::base(), THIRD), [256, 12, 4, 1024]);
    assert_eq!(size(ElectraConfig::small(), 0.25), [64, 12, 1, 256]);
    assert_eq!(size(ElectraConfig::large(), 0.3), [320, 24, 5, 1280]);
}

#[test]
fn all_sizes_cost_something() {
    let millions: Vec<_> = ELECTRAS
        .iter()
        .map(|spec| (spec.name, spec.summary().expect("published sizes are legal").parameters / 1_000_000))
        .collect();
    let expected = [("electra-mini", 7), ("electra-small", 14), ("electra-base", 119), ("electra-large", 354)];
    assert_eq!(millions, expected);
}

fn set_weights(run: &mut Interpreter<'_>, model: &Model) {
    for spec in &model.specs {
        let scale = if spec.kind == Kind::Weight { 20.0 } else { 1.0 };
        let data: Vec<f64> = initialise(spec, 3).into_iter().map(|x| scale * f64::from(x)).collect();
        run.set(&spec.name, &data);
    }
}

/// A batch by the names of its feeds: the last token is padding, places are drawn twice, and the last draw only fills up.
fn batch(graph: &bessemer_ir::Graph) -> Vec<(&'static str, Vec<f64>)> {
    let tokens = SEQUENCES.batch * SEQUENCES.length;
    let excluded = [0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
    let feeds = vec![
        ("input_ids", (0..tokens).map(|i| (5 + i * 7 % 24) as f64).collect()),
        ("segment_ids", (0..tokens).map(|i| (i % 6 / 3) as f64).collect()),
        ("input_mask", (0..tokens).map(|i| f64::from(u8::from(i % 6 != 5))).collect()),
        ("masked_lm_positions", vec![2.0, 3.0, 2.0, 0.0, 4.0, 4.0, 4.0, 0.0]),
        ("masked_lm_weights", vec![1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]),
        ("masked_lm_replaced", vec![0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]),
        ("batch_number", vec![0.0]),
        ("start_positions", vec![2.0, 6.0]),
        ("end_positions", vec![4.0, 3.0]),
        ("p_mask", [excluded, excluded].concat()),
        ("is_impossible", vec![0.0, 1.0]),
    ];
    feeds.into_iter().filter(|(name, _)| graph.find_input(name).is_some()).collect()
}

fn interpreter(model: &Model) -> Interpreter<'_> {
    let mut run = Interpreter::new(&model.graph);
    set_weights(&mut run, model);
    for (name, data) in batch(&model.graph) {
        run.set(name, &data);
    }
    run
}

fn number(run: &Interpreter<'_>, name: &str) -> f64 {
    run.output(name).data[0]
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-5, "{a} and {b}");
}

#[test]
fn steps_agree_with_each_other() {
    let step = train(&still(small()), SEQUENCES, &options(), &sgd()).expect("legal");
    let mut trained = interpreter(&step);
    let judge = evaluate(&small(), SEQUENCES, &options()).expect("legal");
    let mut judged = interpreter(&judge);
    trained.run();
    judged.run();
    let sum = |name: &str| number(&judged, name);
    assert_eq!((sum("mlm_weight"), sum("disc_weight")), (6.0, 10.0));
    close(number(&trained, "mlm_loss"), sum("mlm_loss_sum") / 6.000_001);
    close(number(&trained, "disc_loss"), sum("disc_loss_sum") / 10.000_001);
    close(number(&trained, "loss"), number(&trained, "mlm_loss") + 50.0 * number(&trained, "disc_loss"));
    close(number(&trained, "mlm_accuracy"), sum("mlm_correct") / 6.0);
    close(number(&trained, "sampled_accuracy"), sum("sampled_correct") / 6.0);
    close(number(&trained, "disc_accuracy"), sum("disc_correct") / 10.0);
    close(number(&trained, "disc_recall"), sum("disc_found") / sum("disc_replaced"));
    close(number(&trained, "disc_precision"), sum("disc_found") / sum("disc_suspected").max(1.0));
    assert_eq!(sum("disc_correct"), 10.0 - sum("disc_replaced") - sum("disc_suspected") + 2.0 * sum("disc_found"));
    assert!(sum("disc_replaced") >= 2.0, "nearly every sample is another word");
}

/// The graph that the discriminator sees the replaced text through, from outside: scores of the text as it would be.
fn verdicts(judge: &Interpreter<'_>, joint: &Model, words: &[f64]) -> Vec<f64> {
    let single = infer_discriminator(&small(), SEQUENCES, &ElectraOptions::default()).expect("legal");
    let mut run = interpreter(&single);
    for spec in &joint.specs {
        if let Some(name) = in_discriminator(&spec.name) {
            run.set(name, &judge.input(&spec.name).data);
        }
    }
    run.set("input_ids", words);
    run.run();
    run.output("disc_logits").data.clone()
}

#[test]
fn samples_take_the_places_of_words() {
    let judge =
        evaluate(&small(), SEQUENCES, &PretrainingOptions { uniform_generator: true, ..options() }).expect("legal");
    let mut run = interpreter(&judge);
    run.set("batch_number", &[9.0]);
    run.run();
    let streams: Vec<_> = judge
        .graph
        .nodes()
        .iter()
        .filter_map(|node| match &node.op {
            Op::Random(random) => Some((random.seed, random.stream)),
            _ => None,
        })
        .collect();
    let &[(seed, stream)] = streams.as_slice() else { panic!("one node draws samples, not {streams:?}") };
    // The largest noise is at the largest uniform number.
    let draw = |row: u64| {
        (0..29).max_by(|&a, &b| {
            let at = |word: u64| philox::uniform(seed, 9, stream, row * 29 + word);
            at(a).total_cmp(&at(b))
        })
    };
    let samples: Vec<f64> = (0..8).map(|row| draw(row).expect("there are words") as f64).collect();
    let mut words = run.input("input_ids").data.clone();
    let original = words.clone();
    words[2] = ((samples[0] + samples[2]) / 2.0).floor();
    words[3] = samples[1];
    words[6 + 4] = ((samples[4] + samples[5] + samples[6]) / 3.0).floor();
    let scores = verdicts(&run, &judge, &words);
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
    let judge = evaluate(&small(), SEQUENCES, &options()).expect("legal");
    let mut run = interpreter(&judge);
    run.run();
    let generator = small().generator(0.25);
    let single = infer_generator(&generator, SEQUENCES, &ElectraOptions::default()).expect("legal");
    let mut alone = interpreter(&single);
    for spec in &judge.specs {
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
        let judge = evaluate(&config, SEQUENCES, &PretrainingOptions { disallow_correct, ..options() }).expect("legal");
        let mut run = interpreter(&judge);
        let words: Vec<f64> = run.input("input_ids").data.iter().map(|word| word % vocab_size as f64).collect();
        run.set("input_ids", &words);
        (0..20)
            .map(|batch| {
                run.set("batch_number", &[f64::from(batch)]);
                run.run();
                number(&run, "sampled_correct")
            })
            .sum::<f64>()
    };
    assert!(replaced(false, 5) > 0.0, "one word of five is right by chance");
    assert_eq!(replaced(true, 5), 0.0);
}

#[test]
fn no_gradient_passes_through_samples() {
    let (b, _) = forward_loss(&small(), SEQUENCES, &options()).expect("legal");
    let step = train(&small(), SEQUENCES, &options(), &sgd()).expect("every parameter reaches the loss");
    assert!(step.graph.len() > b.graph.len());
    let streams: Vec<_> = step
        .graph
        .nodes()
        .iter()
        .filter_map(|node| match &node.op {
            Op::Random(random) => Some(random.stream),
            Op::Attention(attention) => attention.dropout.map(|dropout| dropout.stream),
            _ => None,
        })
        .collect();
    // One after each use of the embeddings and three a layer, for two networks; and the samples between them.
    assert_eq!(streams, (0..15).collect::<Vec<_>>());
}

/// `x - ln(sum(exp(x)))` of a row, and the places by falling value.
fn ranked(row: &[f64]) -> Vec<(usize, f64)> {
    let total = row.iter().map(|x| x.exp()).sum::<f64>().ln();
    let mut ranked: Vec<_> = row.iter().map(|x| x - total).enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked
}

#[test]
fn the_beam_agrees_with_training() {
    let step = squad::train(&still(small()), 2, 6, &squad_options(JOINT), &sgd()).expect("legal");
    let mut trained = interpreter(&step);
    let model = squad::predict(&small(), 2, 6, &squad_options(JOINT)).expect("legal");
    let mut predicted = interpreter(&model);
    predicted.run();
    let data = |name: &str| predicted.output(name).data.clone();
    let (starts, ends) = (data("start_indices"), data("end_indices"));
    let (start_values, end_values) = (data("start_log_probs"), data("end_log_probs"));
    assert_eq!((starts.len(), ends.len(), data("impossible_logits").len()), (6, 18, 2));
    // The loss of a start and an end alone is what the beam says of them.
    for (item, k, j) in [(0, 0, 0), (0, 2, 1), (1, 1, 2), (1, 0, 0)] {
        let (start, end) = (starts[item * 3 + k], ends[(item * 3 + k) * 3 + j]);
        let [mut first, mut last] = [[9.0; 2]; 2];
        (first[item], last[item]) = (start, end);
        trained.set("start_positions", &first);
        trained.set("end_positions", &last);
        set_weights(&mut trained, &step);
        trained.run();
        close(number(&trained, "start_loss"), -start_values[item * 3 + k]);
        close(number(&trained, "end_loss"), -end_values[(item * 3 + k) * 3 + j]);
    }
    for row in starts.chunks(3).chain(ends.chunks(3)) {
        assert!(row.iter().all(|&place| [0.0, 2.0, 3.0, 4.0].contains(&place)), "{row:?} has excluded tokens");
        assert!(row[0] != row[1] && row[1] != row[2] && row[0] != row[2]);
    }
    for row in start_values.chunks(3).chain(end_values.chunks(3)) {
        assert!(row.is_sorted_by(|a, b| a >= b));
    }
}

#[test]
fn the_plain_head_has_losses_of_its_logits() {
    let step = squad::train(&still(small()), 2, 6, &squad_options(SpanHead::Plain), &sgd()).expect("legal");
    let mut trained = interpreter(&step);
    trained.run();
    let model = squad::predict(&small(), 2, 6, &squad_options(SpanHead::Plain)).expect("legal");
    let mut predicted = interpreter(&model);
    predicted.run();
    let loss = |name: &str, item: usize, place: usize| {
        let row = &predicted.output(name).data[item * 6..][..6];
        -ranked(row).iter().find(|&&(at, _)| at == place).expect("a place").1
    };
    // The second start is beyond the sequence and does not count.
    close(number(&trained, "start_loss"), loss("start_logits", 0, 2));
    close(number(&trained, "end_loss"), (loss("end_logits", 0, 4) + loss("end_logits", 1, 3)) / 2.0);
    close(number(&trained, "loss"), (number(&trained, "start_loss") + number(&trained, "end_loss")) / 2.0);
    assert!(step.graph.find_input("p_mask").is_none() && model.graph.find_input("is_impossible").is_none());
}

#[test]
fn rates_fall_with_depth() {
    let rates = ElectraConfig::base().layer_rates(0.8);
    for (name, power) in [
        ("electra.embeddings.word_embeddings.weight", 14),
        ("electra.embeddings_project.bias", 14),
        ("electra.encoder.layer.0.output.dense.bias", 13),
        ("electra.encoder.layer.1.output.dense.bias", 12),
        ("electra.encoder.layer.11.output.dense.bias", 2),
        ("start_logits.dense.weight", 0),
        ("qa_outputs.weight", 0),
    ] {
        assert!((rates.of(name) - 0.8f64.powi(power)).abs() < 1e-15, "{name}");
    }
}

/// The compiled graph with the weights and the batch of a run of the interpreter.
fn executor(model: &Model, reference: &Interpreter<'_>, threads: usize) -> Executor {
    let cpu = CpuOptions { threads, ..CpuOptions::default() };
    let plan = compile(&model.graph, &cpu, &CompileOptions::default()).expect("a legal graph");
    let mut executor = Executor::new(plan, cpu).expect("every operation has a kernel");
    let weights = model.specs.iter().map(|spec| (spec.name.as_str(), reference.input(&spec.name).data.clone()));
    for (name, data) in weights.chain(batch(&model.graph)) {
        let is_int = executor.input_type(name).expect("an input").dtype == DType::I32;
        let bytes = |&x: &f64| if is_int { (x as i32).to_le_bytes() } else { (x as f32).to_le_bytes() };
        executor.write(name, &data.iter().flat_map(bytes).collect::<Vec<u8>>()).expect("an input");
    }
    executor
}

/// Results of the compiled graph against those of the interpreter.
fn runs_on_the_cpu(what: &str, model: &Model) {
    let mut reference = interpreter(model);
    let executors = [1, 2].map(|threads| executor(model, &reference, threads));
    reference.run();
    for mut executor in executors {
        executor.run().expect("a legal batch");
        for (name, _) in model.graph.outputs() {
            let expected = reference.output(name);
            let is_int = expected.ty.dtype == DType::I32;
            let bytes = executor.output(name).expect("an output").chunks_exact(4);
            assert_eq!(bytes.len(), expected.data.len());
            for (four, &expected) in bytes.zip(&expected.data) {
                let four: [u8; 4] = four.try_into().expect("4 bytes");
                let actual = if is_int { i32::from_le_bytes(four).into() } else { f64::from(f32::from_le_bytes(four)) };
                let error = (actual - expected).abs() / expected.abs().max(1.0);
                assert!(error < 1e-4, "{what}: {name} is {actual}, not {expected}");
            }
        }
    }
}

#[test]
fn every_step_runs_on_the_cpu() {
    let config = still(small());
    let network = ElectraOptions::default();
    let variants = [
        options(),
        PretrainingOptions { disallow_correct: true, ..options() },
        PretrainingOptions { uniform_generator: true, ..options() },
    ];
    for options in variants {
        runs_on_the_cpu("train", &train(&config, SEQUENCES, &options, &sgd()).expect("legal"));
        runs_on_the_cpu("evaluate", &evaluate(&config, SEQUENCES, &options).expect("legal"));
    }
    runs_on_the_cpu("discriminator", &infer_discriminator(&config, SEQUENCES, &network).expect("legal"));
    runs_on_the_cpu("generator", &infer_generator(&config, SEQUENCES, &network).expect("legal"));
    for head in [SpanHead::Plain, JOINT, SpanHead::Joint { beam: 6, may_be_impossible: false }] {
        runs_on_the_cpu("squad", &squad::train(&config, 2, 6, &squad_options(head), &sgd()).expect("legal"));
        runs_on_the_cpu("squad", &squad::predict(&config, 2, 6, &squad_options(head)).expect("legal"));
    }
}

#[test]
fn impossible_settings() {
    let refused = |error: ModelError, setting: &str| {
        assert!(matches!(error, ModelError::Setting { .. }) && error.to_string().contains(setting), "{error}");
    };
    let of = |config: ElectraConfig, options: PretrainingOptions| {
        evaluate(&config, SEQUENCES, &options).expect_err("not possible")
    };
    refused(of(ElectraConfig { embedding_size: 0, ..small() }, options()), "embedding_size");
    refused(of(small(), PretrainingOptions { generator_fraction: 1.5, ..options() }), "generator_fraction");
    refused(of(small(), PretrainingOptions { mask_token: 29, ..options() }), "mask_token");
    let squad = |head: SpanHead, length: usize| {
        squad::predict(&small(), 2, length, &squad_options(head)).expect_err("not possible")
    };
    refused(squad(SpanHead::Joint { beam: 7, may_be_impossible: false }, 6), "beam");
    refused(squad(SpanHead::Plain, 8), "sequence_length");
}

#[test]
fn initial_weights_are_googles() {
    let largest = |init: BertInit| {
        let network = ElectraOptions { init, ..ElectraOptions::default() };
        let model = squad::predict(&small(), 2, 6, &SquadOptions { network, head: JOINT }).expect("legal");
        let weights = model.specs.iter().filter(|spec| spec.kind == Kind::Weight);
        weights.flat_map(|spec| initialise(spec, 1)).fold(0.0f32, |max, x| max.max(x.abs()))
    };
    assert!(largest(BertInit::Truncated) <= 0.04);
    assert!(largest(BertInit::Normal) > 0.04);
}

#[test]
fn files_have_the_tensors_of_their_networks() {
    let joint = evaluate(&small(), SEQUENCES, &options()).expect("legal");
    let names: Vec<(&str, ())> = joint.specs.iter().map(|spec| (spec.name.as_str(), ())).collect();
    let files = split(&names);
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let network = ElectraOptions::default();
    let of = |model: Model| model.specs.into_iter().map(|spec| spec.name).collect::<Vec<_>>();
    let discriminator = of(infer_discriminator(&small(), SEQUENCES, &network).expect("legal"));
    let generator = of(infer_generator(&small().generator(0.25), SEQUENCES, &network).expect("legal"));
    let tied = ["generator_lm_head.weight".to_string()];
    assert_eq!(sorted(files.discriminator.into_iter().map(|(name, ())| name).collect()), sorted(discriminator));
    let generator = generator.into_iter().chain(tied).collect();
    assert_eq!(sorted(files.generator.into_iter().map(|(name, ())| name).collect()), sorted(generator));
}
