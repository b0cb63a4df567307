//! A folder of fixtures of a model of text: weights, feeds, losses, gradients and ten steps of AdamW.

use crate::fixtures::{TOLERANCE, Tensors, assert_close, assert_gradients, json, set_weights, tensors, with_gradients};
use bessemer_ir::Value;
use bessemer_ir::reference::Interpreter;
use bessemer_models::bert::{BertConfig, Sequences};
use bessemer_models::{Model, WeightNames};
use bessemer_nn::{
    Activation, Adam, AdamMoments, Builder, DecayExclude, DecayForm, EpsForm, Optimizer, Schedule, TrainConfig,
};

pub(crate) struct Case {
    folder: &'static str,
    pub expected: serde_json::Value,
    pub feeds: Tensors,
}

impl Case {
    pub(crate) fn open(folder: &'static str) -> Case {
        let expected = json(&format!("{folder}/expected.json"));
        Case { folder, expected, feeds: tensors(&format!("{folder}/feeds.safetensors")) }
    }

    pub(crate) fn tensors(&self, name: &str) -> Tensors {
        tensors(&format!("{}/{name}.safetensors", self.folder))
    }

    /// A number of `expected.json`.
    pub(crate) fn size(&self, name: &str) -> usize {
        self.expected["config"][name].as_u64().expect("a size") as usize
    }

    pub(crate) fn bert(&self) -> BertConfig {
        let config = &self.expected["config"];
        BertConfig {
            vocab_size: self.size("vocab_size"),
            hidden_size: self.size("hidden_size"),
            num_hidden_layers: self.size("num_hidden_layers"),
            num_attention_heads: self.size("num_attention_heads"),
            intermediate_size: self.size("intermediate_size"),
            max_position_embeddings: self.size("max_position_embeddings"),
            type_vocab_size: self.size("type_vocab_size"),
            hidden_dropout_prob: 0.0,
            attention_probs_dropout_prob: 0.0,
            layer_norm_eps: config["layer_norm_eps"].as_f64().expect("a number"),
            hidden_act: match config["hidden_act"].as_str() {
                Some("gelu_new") => Activation::GeluTanh,
                _ => Activation::Gelu,
            },
            ..BertConfig::tiny()
        }
    }

    pub(crate) fn sequences(&self) -> Sequences {
        let tokens = &self.feeds["input_ids"].shape;
        let predictions = self.feeds.get("masked_lm_positions").map_or(1, |places| places.shape[1]);
        Sequences { batch: tokens[0], length: tokens[1], predictions }
    }

    /// A run with the feeds that the model takes and these weights.
    pub(crate) fn interpreter<'a>(&self, model: &'a Model, weights: &Tensors) -> Interpreter<'a> {
        let mut run = Interpreter::new(&model.graph);
        set_weights(&mut run, model, weights);
        for (name, tensor) in self.feeds.iter().filter(|(name, _)| model.graph.find_input(name).is_some()) {
            run.set(name, &tensor.data);
        }
        run
    }

    /// Losses and all gradients of one pass.
    pub(crate) fn check_pass(&self, (b, loss): (Builder, Value)) {
        let model = with_gradients(b, loss, &WeightNames::PLAIN);
        let mut run = self.interpreter(&model, &self.tensors("weights"));
        run.run();
        for (name, value) in self.expected["losses"].as_object().expect("losses by name") {
            let (actual, value) = (run.output(name).data[0], value.as_f64().expect("a number"));
            assert!((actual - value).abs() < 1e-10 * value, "{}: {name} is {actual}, not {value}", self.folder);
        }
        let expected = self.tensors("gradients");
        assert_eq!(model.specs.iter().filter(|spec| spec.is_trainable()).count(), expected.len());
        assert_gradients(&model, &run, &expected, TOLERANCE);
    }

    /// The optimizer of the ten steps.
    fn adam(&self) -> Adam {
        let number = |name: &str| self.expected["adamw"][name].as_f64().expect("a number");
        Adam {
            moments: AdamMoments {
                beta1: 0.9,
                beta2: 0.999,
                eps: number("eps"),
                eps_form: EpsForm::OutsideSqrt,
                bias_correction: true,
            },
            weight_decay: number("weight_decay"),
            decay_form: DecayForm::Decoupled,
            decay_exclude: DecayExclude::LayerNormAndBias,
        }
    }

    /// Losses of ten steps, and the weights after them.
    pub(crate) fn check_steps(&self, train: impl FnOnce(&TrainConfig) -> Model) {
        let settings = &self.expected["adamw"];
        let (adam, lr) = (self.adam(), settings["lr"].as_f64().expect("a number"));
        let model = train(&TrainConfig::new(Optimizer::Adam(adam), Schedule::constant(lr)));
        let excluded = model.specs.iter().filter(|s| s.is_trainable() && adam.decay_exclude.excludes(s));
        let mut excluded: Vec<&str> = excluded.map(|spec| spec.name.as_str()).collect();
        excluded.sort_unstable();
        assert_eq!(settings["not_decayed"], serde_json::json!(excluded));

        let mut run = self.interpreter(&model, &self.tensors("weights"));
        for (step, expected) in settings["losses"].as_array().expect("a list").iter().enumerate() {
            run.run();
            let (loss, expected) = (run.output("loss").data[0], expected.as_f64().expect("a number"));
            let what = self.folder;
            assert!((loss - expected).abs() < 1e-8 * expected, "{what}: loss {loss} of step {step}, not {expected}");
        }
        for (name, tensor) in self.tensors("final_weights") {
            assert_close(&name, &run.input(&name).data, &tensor.data, TOLERANCE);
        }
    }

    /// Results of the model with these weights against `outputs.safetensors`.
    pub(crate) fn check_outputs(&self, model: &Model, weights: &Tensors) {
        let expected = self.tensors("outputs");
        let mut run = self.interpreter(model, weights);
        run.run();
        for (name, _) in model.graph.outputs() {
            assert_eq!(run.output(name).ty.shape.dims(), expected[name].shape, "{name}");
            assert_close(name, &run.output(name).data, &expected[name].data, TOLERANCE);
        }
    }
}
