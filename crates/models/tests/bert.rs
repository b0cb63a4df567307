//! BERT: counts of the published sizes, graphs of all steps, names of checkpoints.

use bessemer_ir::Op;
use bessemer_ir::reference::Interpreter;
use bessemer_models::bert::{BERTS, BertConfig, BertInit, BertOptions, Sequences, TIED, evaluate, infer, train};
use bessemer_models::flops;
use bessemer_models::tensorflow::{self, FileName};
use bessemer_models::{ExternalTensor, Model, ModelError, load_into};
use bessemer_nn::{Activation, Optimizer, ParamKind, Schedule, Sgd, TrainConfig, initialise};

const PHASE_1: Sequences = Sequences { batch: 1, length: 128, predictions: 20 };
const PHASE_2: Sequences = Sequences { batch: 1, length: 512, predictions: 80 };

/// Sizes that the reference interpreter computes in no time.
fn small() -> (BertConfig, Sequences) {
    let config = BertConfig {
        vocab_size: 29,
        hidden_size: 8,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 12,
        max_position_embeddings: 7,
        ..BertConfig::tiny()
    };
    (config, Sequences { batch: 2, length: 5, predictions: 3 })
}

fn sgd() -> TrainConfig {
    let rule = Sgd::default();
    TrainConfig::new(Optimizer::Sgd(rule), Schedule::constant(0.1))
}

fn parameters(model: &Model, wanted: impl Fn(&str) -> bool) -> usize {
    let trained = model.specs.iter().filter(|spec| spec.is_trainable() && wanted(&spec.name));
    trained.map(|spec| spec.ty.shape.elements()).sum()
}

#[test]
fn counts() {
    let counts = |pad_vocab_to: usize| {
        let options = BertOptions { pad_vocab_to, ..BertOptions::default() };
        let model = infer(&BertConfig::base(), PHASE_1, &options).expect("legal");
        [
            parameters(&model, |name| name.starts_with("bert.") && !name.contains("pooler")),
            parameters(&model, |name| name.starts_with("bert.")),
            parameters(&model, |_| true),
        ]
    };
    assert_eq!(counts(1), [108_891_648, 109_482_240, 110_106_428]);
    assert_eq!(counts(8), [108_896_256, 109_486_848, 110_111_042]);
}

#[test]
fn arithmetic() {
    let gmac = |sequences: Sequences| {
        let model = infer(&BertConfig::base(), sequences, &BertOptions::default()).expect("legal");
        flops(&model.graph) as f64 / 2e9
    };
    assert!((gmac(PHASE_1) - 11.65).abs() < 0.01, "{}", gmac(PHASE_1));
    assert!((gmac(PHASE_2) - 50.24).abs() < 0.01, "{}", gmac(PHASE_2));
    let model = train(&BertConfig::base(), PHASE_1, &BertOptions::default(), &sgd()).expect("legal");
    let ratio = flops(&model.graph) as f64 / 2e9 / gmac(PHASE_1);
    assert!((ratio - 3.0).abs() < 0.05, "a step has {ratio} times the products of the forward pass");
}

#[test]
fn the_zoo_has_all_sizes() {
    let millions: Vec<_> = BERTS
        .iter()
        .map(|spec| (spec.name, spec.summary().expect("published sizes are legal").parameters / 1_000_000))
        .collect();
    let expected = [
        ("bert-tiny", 4),
        ("bert-mini", 11),
        ("bert-small", 29),
        ("bert-medium", 41),
        ("bert-base", 110),
        ("bert-large", 336),
    ];
    assert_eq!(millions, expected);
}

/// Writes a batch in which every number counts, and initial weights of some size.
fn fill(run: &mut Interpreter<'_>, model: &Model, sequences: Sequences, config: &BertConfig) {
    for spec in &model.specs {
        let scale = if spec.kind == ParamKind::Weight { 20.0 } else { 1.0 };
        let data: Vec<f64> = initialise(spec, 3).into_iter().map(|x| scale * f64::from(x)).collect();
        run.set(&spec.name, &data);
    }
    let tokens = sequences.batch * sequences.length;
    let spread = |len: usize, limit: usize| (0..len).map(|i| (i * 7 % limit) as f64).collect::<Vec<_>>();
    run.set("input_ids", &spread(tokens, config.vocab_size));
    run.set("segment_ids", &spread(tokens, 2));
    run.set("input_mask", &(0..tokens).map(|i| f64::from(u8::from(i % 5 != 4))).collect::<Vec<_>>());
    let words = sequences.batch * sequences.predictions;
    run.set("masked_lm_positions", &spread(words, sequences.length - 1));
    if model.graph.find_input("masked_lm_ids").is_some() {
        run.set("masked_lm_ids", &spread(words, config.vocab_size));
        run.set("masked_lm_weights", &(0..words).map(|i| f64::from(u8::from(i % 3 != 2))).collect::<Vec<_>>());
        run.set("next_sentence_labels", &spread(sequences.batch, 2));
    }
}

#[test]
fn steps_agree_with_each_other() {
    let (config, sequences) = small();
    let still = BertConfig { hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0, ..config };
    let options = BertOptions::default();
    let number = |run: &Interpreter<'_>, name: &str| run.output(name).data[0];
    let step = train(&still, sequences, &options, &sgd()).expect("legal");
    assert!(step.graph.find_input("micro_step").is_none(), "nothing random is in the step");
    let mut trained = Interpreter::new(&step.graph);
    fill(&mut trained, &step, sequences, &config);
    let evaluation = evaluate(&config, sequences, &options).expect("legal");
    let mut evaluated = Interpreter::new(&evaluation.graph);
    fill(&mut evaluated, &evaluation, sequences, &config);
    let forward = infer(&config, sequences, &options).expect("legal");
    let mut inferred = Interpreter::new(&forward.graph);
    fill(&mut inferred, &forward, sequences, &config);
    for run in [&mut trained, &mut evaluated, &mut inferred] {
        run.run();
    }

    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} and {b}");
    assert_eq!(number(&evaluated, "mlm_weight"), 4.0);
    close(number(&trained, "mlm_loss"), number(&evaluated, "mlm_loss_sum") / 4.0);
    close(number(&trained, "nsp_loss"), number(&evaluated, "nsp_loss_sum") / 2.0);
    close(number(&trained, "loss"), number(&trained, "mlm_loss") + number(&trained, "nsp_loss"));
    close(number(&trained, "mlm_accuracy"), number(&evaluated, "mlm_correct") / 4.0);
    close(number(&trained, "nsp_accuracy"), number(&evaluated, "nsp_correct") / 2.0);

    let logits = inferred.output("nsp_logits").data.chunks(2);
    let losses = logits.zip([0, 1]).map(|(row, label)| (row[0].exp() + row[1].exp()).ln() - row[label]);
    close(losses.sum(), number(&evaluated, "nsp_loss_sum"));
    assert_eq!(inferred.output("mlm_logits").ty.shape.dims(), [2, 3, 29]);

    let loss = number(&trained, "loss");
    trained.run();
    assert!(number(&trained, "loss") < loss, "a step of gradient descent descends");
}

#[test]
fn masked_tokens_do_not_matter() {
    let (config, sequences) = small();
    let model = infer(&config, sequences, &BertOptions::default()).expect("legal");
    let mut run = Interpreter::new(&model.graph);
    fill(&mut run, &model, sequences, &config);
    run.run();
    let before = run.output("mlm_logits").data.clone();
    let mut words = run.input("input_ids").data.clone();
    words[4] = 3.0;
    run.set("input_ids", &words);
    run.run();
    assert_eq!(run.output("mlm_logits").data, before);
    words[3] += 1.0;
    run.set("input_ids", &words);
    run.run();
    assert_ne!(run.output("mlm_logits").data, before);
}

#[test]
fn dropout_has_streams_of_its_own() {
    let (config, sequences) = small();
    let model = train(&config, sequences, &BertOptions { seed: 77, ..BertOptions::default() }, &sgd()).expect("legal");
    let mut streams = Vec::new();
    for node in model.graph.nodes() {
        match &node.op {
            Op::Random(random) => streams.push((random.seed, random.stream)),
            Op::Attention(attention) => {
                let dropout = attention.dropout.expect("training drops probabilities");
                streams.push((dropout.seed, dropout.stream));
            }
            _ => {}
        }
    }
    // One after the embeddings and three a layer.
    assert_eq!(streams, (0..7).map(|stream| (77, stream)).collect::<Vec<_>>());
    assert!(model.graph.find_input("micro_step").is_some());
}

#[test]
fn variants() {
    let (config, sequences) = small();
    let node_count = |options: BertOptions, act: Activation| {
        let config = BertConfig { hidden_act: act, ..config };
        infer(&config, sequences, &options).expect("legal").graph.len()
    };
    let plain = node_count(BertOptions::default(), Activation::Gelu);
    let bare = BertOptions { mlm_activation: false, ..BertOptions::default() };
    assert!(node_count(bare, Activation::Gelu) < plain);
    assert!(node_count(BertOptions::default(), Activation::GeluTanh) > plain);

    let weights = |init: BertInit, name: &str| {
        let model = infer(&config, sequences, &BertOptions { init, ..BertOptions::default() }).expect("legal");
        let spec = model.specs.iter().find(|spec| spec.name == name).expect("a parameter").clone();
        initialise(&spec, 1).into_iter().fold(0.0f32, |max, x| max.max(x.abs()))
    };
    let (wide, narrow) = ("bert.encoder.layer.0.intermediate.dense", "bert.encoder.layer.0.output.dense");
    assert!(weights(BertInit::Truncated, &format!("{wide}.weight")) <= 0.04);
    assert!(weights(BertInit::Normal, &format!("{wide}.weight")) > 0.04);
    assert!(weights(BertInit::NvidiaTorch, &format!("{wide}.weight")) > 0.3);
    assert!(weights(BertInit::NvidiaTorch, &format!("{wide}.bias")) > 0.2);
    assert!(weights(BertInit::NvidiaTorch, &format!("{narrow}.weight")) < 0.1);
}

#[test]
fn mimetic_weights_compare_words_and_places() {
    let (config, sequences) = small();
    let options = BertOptions { init: BertInit::Mimetic, ..BertOptions::default() };
    let model = infer(&config, sequences, &options).expect("legal");
    let matrix = |name: &str| {
        let spec = model.specs.iter().find(|spec| spec.name == format!("bert.{name}.weight")).expect("a parameter");
        let width = spec.ty.shape.cols();
        initialise(spec, 1).chunks(width).map(<[f32]>::to_vec).collect::<Vec<_>>()
    };
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    let (words, places) = (matrix("embeddings.word_embeddings"), matrix("embeddings.position_embeddings"));
    let types = matrix("embeddings.token_type_embeddings");
    for table in [&places, &types] {
        assert!(
            words.iter().all(|word| table.iter().all(|row| dot(word, row) == 0.0)),
            "words have columns of their own"
        );
    }
    let near = |distance: usize| dot(&places[3], &places[3 + distance]);
    assert!(
        (near(0) - 1.0).abs() < 1e-5 && near(0) > near(1) && near(1) > near(2),
        "{} {} {}",
        near(0),
        near(1),
        near(2)
    );
    for layer in 0..config.num_hidden_layers {
        let of = |name: &str| matrix(&format!("encoder.layer.{layer}.attention.self.{name}"));
        assert_eq!(of("query"), of("key"));
        assert_ne!(of("query"), of("value"));
        assert!(of("query").iter().enumerate().all(|(row, x)| x[row] > 1.0 && dot(x, x) == x[row] * x[row]));
    }
}

#[test]
fn impossible_sizes() {
    let (config, sequences) = small();
    let options = BertOptions::default();
    let refused = |config: BertConfig, sequences: Sequences, setting: &str| {
        let error = infer(&config, sequences, &options).expect_err("not possible");
        assert!(matches!(error, ModelError::Setting { .. }) && error.to_string().contains(setting), "{error}");
    };
    refused(BertConfig { num_attention_heads: 3, ..config }, sequences, "num_attention_heads");
    refused(BertConfig { hidden_dropout_prob: 1.0, ..config }, sequences, "hidden_dropout_prob");
    refused(config, Sequences { length: 8, ..sequences }, "sequence_length");
    refused(config, Sequences { predictions: 0, ..sequences }, "max_predictions");
}

/// The name of a parameter in Google's checkpoints.
fn google_name(name: &str) -> String {
    let norm = name.contains("LayerNorm");
    let name =
        name.replace("encoder.layer.", "encoder.layer_").replace("cls.predictions.bias", "cls.predictions.output_bias");
    let name = name.replace("seq_relationship.weight", "seq_relationship.output_weights");
    let name = name.replace("seq_relationship.bias", "seq_relationship.output_bias").replace('.', "/");
    match name.strip_suffix("/weight") {
        Some(stem) if norm => format!("{stem}/gamma"),
        Some(stem) if stem.ends_with("_embeddings") => stem.to_string(),
        Some(stem) => format!("{stem}/kernel"),
        None if norm => name.replace("/bias", "/beta"),
        None => name,
    }
}

#[test]
fn checkpoints_of_google_load() {
    let (config, sequences) = small();
    let model = infer(&config, sequences, &BertOptions::default()).expect("legal");
    let data: Vec<(String, Vec<usize>, Vec<f32>)> = model
        .specs
        .iter()
        .map(|spec| {
            let (name, mut shape) = (google_name(&spec.name), spec.ty.shape.to_vec());
            let data = initialise(spec, 1);
            if !name.ends_with("/kernel") {
                return (name, shape, data);
            }
            let (rows, cols) = (shape[0], shape[1]);
            shape.reverse();
            (name, shape, (0..rows * cols).map(|i| data[i % rows * cols + i / rows]).collect())
        })
        .collect();
    let data: Vec<(String, Vec<usize>, Vec<f32>)> = data
        .iter()
        .map(|(name, shape, data)| {
            let FileName { canonical, layout } = tensorflow::read(name).expect("a name of Google's");
            let (shape, data) = layout.to_torch(shape, 1, data).expect("the data fill the shape");
            (canonical, shape, data)
        })
        .collect();
    let mut tensors: Vec<ExternalTensor<'_>> =
        data.iter().map(|(name, shape, data)| ExternalTensor { name, shape, data }).collect();
    for name in [TIED[0].0, "bert/pooler/dense/kernel/adam_m", "global_step", "bert.embeddings.position_ids"] {
        tensors.push(ExternalTensor { name, shape: &[], data: &[0.0] });
    }
    for (spec, loaded) in load_into(&model.specs, model.names, &tensors).expect("all tensors are there") {
        assert_eq!(loaded, initialise(spec, 1), "{}", spec.name);
    }
}
