//! Narrow BERTs against Hugging Face's in `f64`: losses, every gradient, ten steps of AdamW.

use crate::fixtures::{Tensors, assert_close, json, set_weights, tensors};
use bessemer_ir::autodiff::gradients;
use bessemer_ir::reference::Interpreter;
use bessemer_models::Model;
use bessemer_models::bert::{BertConfig, BertOptions, Sequences, forward_loss, train};
use bessemer_nn::{
    Activation, Adam, DecayExclude, DecayForm, EpsForm, Moments, Optimizer, ParamSpec, Schedule, TrainConfig,
};

/// The fixtures are rounded to `f32`.
const TOLERANCE: f64 = 1e-6;
const FOLDERS: [&str; 2] = ["bert_gelu", "bert_gelu_new"];

fn case_tensors(folder: &str, name: &str) -> Tensors {
    tensors(&format!("{folder}/{name}.safetensors"))
}

fn expected(folder: &str) -> serde_json::Value {
    json(&format!("{folder}/expected.json"))
}

fn config(folder: &str) -> BertConfig {
    let config = &expected(folder)["config"];
    let size = |name: &str| config[name].as_u64().expect("a size") as usize;
    BertConfig {
        vocab_size: size("vocab_size"),
        hidden_size: size("hidden_size"),
        num_hidden_layers: size("num_hidden_layers"),
        num_attention_heads: size("num_attention_heads"),
        intermediate_size: size("intermediate_size"),
        max_position_embeddings: size("max_position_embeddings"),
        type_vocab_size: size("type_vocab_size"),
        hidden_dropout_prob: 0.0,
        attention_probs_dropout_prob: 0.0,
        layer_norm_eps: config["layer_norm_eps"].as_f64().expect("a number"),
        hidden_act: match config["hidden_act"].as_str().expect("a name") {
            "gelu_new" => Activation::GeluTanh,
            _ => Activation::Gelu,
        },
        ..BertConfig::tiny()
    }
}

fn sequences(feeds: &Tensors) -> Sequences {
    let (tokens, words) = (&feeds["input_ids"].shape, &feeds["masked_lm_ids"].shape);
    Sequences { batch: tokens[0], length: tokens[1], predictions: words[1] }
}

fn interpreter<'a>(model: &'a Model, folder: &str, feeds: &Tensors) -> Interpreter<'a> {
    let mut run = Interpreter::new(&model.graph);
    set_weights(&mut run, &model.specs, &case_tensors(folder, "weights"));
    for (name, tensor) in feeds {
        run.set(name, &tensor.data);
    }
    run
}

#[test]
fn one_pass() {
    for folder in FOLDERS {
        let feeds = case_tensors(folder, "feeds");
        let (mut b, loss) =
            forward_loss(&config(folder), sequences(&feeds), &BertOptions::default()).expect("a legal model");
        let params: Vec<ParamSpec> = b.specs().to_vec();
        let values: Vec<_> = params.iter().map(|spec| spec.value).collect();
        let grads = gradients(&mut b.graph, loss, &values).expect("every parameter reaches the loss");
        b.graph.output("loss", loss);
        for (param, grad) in params.iter().zip(grads) {
            b.graph.output(&param.name, grad);
        }
        let (graph, specs) = b.finish();
        let model = Model { graph, specs };
        let mut run = interpreter(&model, folder, &feeds);
        run.run();
        for (name, value) in expected(folder)["losses"].as_object().expect("losses by name") {
            let (actual, value) = (run.output(name).data[0], value.as_f64().expect("a number"));
            assert!((actual - value).abs() < 1e-10 * value, "{folder}: {name} is {actual}, not {value}");
        }
        let expected = case_tensors(folder, "gradients");
        assert_eq!(params.len(), expected.len());
        for param in &params {
            assert_close(&param.name, &run.output(&param.name).data, &expected[&param.name].data, TOLERANCE);
        }
    }
}

#[test]
fn ten_steps() {
    for folder in FOLDERS {
        let (feeds, settings) = (case_tensors(folder, "feeds"), expected(folder)["adamw"].clone());
        let number = |name: &str| settings[name].as_f64().expect("a number");
        let adam = Adam {
            moments: Moments {
                beta1: 0.9,
                beta2: 0.999,
                eps: number("eps"),
                eps_form: EpsForm::PastRoot,
                bias_correction: true,
            },
            weight_decay: number("weight_decay"),
            decay_form: DecayForm::Decoupled,
            decay_exclude: DecayExclude::LayerNormAndBias,
        };
        let training = TrainConfig::new(Optimizer::Adam(adam), Schedule::constant(number("lr")));
        let model =
            train(&config(folder), sequences(&feeds), &BertOptions::default(), &training).expect("a legal model");

        let excluded = model.specs.iter().filter(|s| s.is_trainable() && adam.decay_exclude.excludes(s));
        let mut excluded: Vec<&str> = excluded.map(|spec| spec.name.as_str()).collect();
        excluded.sort_unstable();
        assert_eq!(settings["not_decayed"], serde_json::json!(excluded));

        let mut run = interpreter(&model, folder, &feeds);
        for (step, expected) in settings["losses"].as_array().expect("a list").iter().enumerate() {
            run.run();
            let (loss, expected) = (run.output("loss").data[0], expected.as_f64().expect("a number"));
            assert!((loss - expected).abs() < 1e-8 * expected, "{folder}: loss {loss} of step {step}, not {expected}");
        }
        for (name, tensor) in case_tensors(folder, "final_weights") {
            assert_close(&name, &run.input(&name).data, &tensor.data, TOLERANCE);
        }
    }
}
