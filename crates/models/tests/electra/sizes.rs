//! Counts of the published sizes, and what is not possible.

use crate::support::{JOINT, SEQUENCES, THIRD, options, small, squad_options};
use bessemer_models::bert::{BertConfig, BertInit, Sequences};
use bessemer_models::electra::names::{in_discriminator, in_generator, split};
use bessemer_models::electra::{
    ELECTRAS, ElectraConfig, ElectraOptions, PretrainingOptions, SpanHead, SquadOptions, evaluate, infer_discriminator,
    infer_generator, squad,
};
use bessemer_models::flops;
use bessemer_models::{Model, ModelError};
use bessemer_nn::{ParamKind, initialise};

fn parameters(model: &Model, wanted: impl Fn(&str) -> bool) -> usize {
    let trained = model.specs.iter().filter(|spec| spec.is_trainable() && wanted(&spec.name));
    trained.map(|spec| spec.ty.shape.elements()).sum()
}

/// Base with the given number of words.
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
    let expected = [
        ("electra-tiny", 5),
        ("electra-mini", 7),
        ("electra-small", 14),
        ("electra-base", 119),
        ("electra-large", 354),
    ];
    assert_eq!(millions, expected);
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
        let weights = model.specs.iter().filter(|spec| spec.kind == ParamKind::Weight);
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
