//! Small models, and a batch in which every number counts.

use bessemer_ir::Graph;
use bessemer_ir::reference::Interpreter;
use bessemer_models::Model;
use bessemer_models::bert::{BertConfig, Sequences};
use bessemer_models::electra::{ElectraConfig, ElectraOptions, PretrainingOptions, SpanHead, SquadOptions};
use bessemer_nn::{Optimizer, ParamKind, Schedule, Sgd, TrainConfig, initialise};

pub(crate) const SEQUENCES: Sequences = Sequences { batch: 2, length: 6, predictions: 4 };

pub(crate) const JOINT: SpanHead = SpanHead::Joint { beam: 3, may_be_impossible: true };

pub(crate) const THIRD: f64 = 1.0 / 3.0;

/// Sizes that the reference interpreter computes in no time.
pub(crate) fn small() -> ElectraConfig {
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

pub(crate) fn still(config: ElectraConfig) -> ElectraConfig {
    let encoder = BertConfig { hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0, ..config.encoder };
    ElectraConfig { encoder, ..config }
}

pub(crate) fn options() -> PretrainingOptions {
    PretrainingOptions { mask_token: 4, ..PretrainingOptions::new(0.25) }
}

pub(crate) fn squad_options(head: SpanHead) -> SquadOptions {
    SquadOptions { network: ElectraOptions::default(), head }
}

pub(crate) fn sgd() -> TrainConfig {
    let rule = Sgd::default();
    TrainConfig::new(Optimizer::Sgd(rule), Schedule::constant(0.01))
}

pub(crate) fn set_weights(run: &mut Interpreter<'_>, model: &Model) {
    for spec in &model.specs {
        let scale = if spec.kind == ParamKind::Weight { 20.0 } else { 1.0 };
        let data: Vec<f64> = initialise(spec, 3).into_iter().map(|x| scale * f64::from(x)).collect();
        run.set(&spec.name, &data);
    }
}

/// A batch by the names of its feeds, or as much of it as the graph takes: the last token is padding, places are drawn twice, and the last draw only fills up.
pub(crate) fn batch(graph: &Graph) -> Vec<(&'static str, Vec<f64>)> {
    let tokens = SEQUENCES.batch * SEQUENCES.length;
    let excluded = [0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
    let feeds = vec![
        ("input_ids", (0..tokens).map(|i| (5 + i * 7 % 24) as f64).collect()),
        ("segment_ids", (0..tokens).map(|i| (i % 6 / 3) as f64).collect()),
        ("input_mask", (0..tokens).map(|i| f64::from(u8::from(i % 6 != 5))).collect()),
        ("masked_lm_positions", vec![2.0, 3.0, 2.0, 0.0, 4.0, 4.0, 4.0, 0.0]),
        ("masked_lm_weights", vec![1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]),
        ("masked_lm_replaced", vec![0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]),
        ("first_example", vec![0.0]),
        ("log_frequencies", (0..29).map(|word| -0.1 * f64::from(word)).collect()),
        ("start_positions", vec![2.0, 6.0]),
        ("end_positions", vec![4.0, 3.0]),
        ("p_mask", [excluded, excluded].concat()),
        ("is_impossible", vec![0.0, 1.0]),
    ];
    let taken = |(name, mut data): (&'static str, Vec<f64>)| {
        data.truncate(graph.shape(graph.find_input(name)?).elements());
        Some((name, data))
    };
    feeds.into_iter().filter_map(taken).collect()
}

pub(crate) fn interpreter(model: &Model) -> Interpreter<'_> {
    let mut run = Interpreter::new(&model.graph);
    set_weights(&mut run, model);
    for (name, data) in batch(&model.graph) {
        run.set(name, &data);
    }
    run
}

pub(crate) fn number(run: &Interpreter<'_>, name: &str) -> f64 {
    run.output(name).data[0]
}

pub(crate) fn close(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-5, "{a} and {b}");
}
