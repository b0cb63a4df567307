//! Pre-training of a small BERT: runs resume and go on in phases bit for bit, and what they leave can be used.

use crate::common::text::{losses, reversed_text, text};
use crate::common::{assert_same_tensors, last, last_folder};
use bessemer_data::text::Vocabulary;
use bessemer_train::events::{EventBody, read_events};
use bessemer_train::recipe::StartRecipe;
use bessemer_train::tasks::pretraining::{FillOptions, fill_masks};
use bessemer_train::{
    ConvertOptions, ErrorKind, EvaluateOptions, Names, Recipe, RunFolder, TrainError, TrainOptions, convert_weights,
    evaluate, train,
};
use bessemer_weights::read_safetensors;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const RECIPE: &str = r#"
name = "tiny-text"
model = { name = "bert-tiny", vocab_multiple = 8 }
data = {}
text = { sequence_length = 16, max_predictions = 3 }
train = { batch_size = 2, accumulation = 2, steps = 6, seed = 3, clip_norm = 1.0 }
optimizer = { kind = "lamb", weight_decay = 0.01, decay_exclude = "layer_norm_and_bias" }
schedule = { kind = "polynomial", base_lr = 0.002, power = 0.5, warmup_fraction = 0.3, warmup_form = "progress" }
eval = { batch_size = 4 }
checkpoint = { every_steps = 2 }
"#;

fn recipe(data: &str, overrides: &[&str]) -> Recipe {
    let source = format!("data.source={data}");
    let overrides = overrides.iter().chain([&source.as_str()]).map(|text| text.parse().unwrap()).collect::<Vec<_>>();
    Recipe::from_toml(RECIPE, "tiny-text", &overrides).unwrap()
}

fn new_run(folder: &Path, data: &str, overrides: &[&str]) -> TrainOptions {
    let mut options = TrainOptions::new(recipe(data, overrides), RunFolder::New(folder.to_owned()));
    options.compute.device.threads = 1;
    options
}

#[test]
fn runs_resume_bit_for_bit_and_phases_hand_over() {
    let folder = TempDir::new().unwrap();
    let (whole, pieces) = (folder.path().join("whole"), folder.path().join("pieces"));
    let report = train(&new_run(&whole, "synthetic", &[])).unwrap();
    assert_eq!((report.steps, report.samples), (6, 24));

    let mut options = new_run(&pieces, "synthetic", &[]);
    options.run_steps = Some(3);
    assert_eq!(train(&options).unwrap_err().kind(), ErrorKind::Interrupted);
    train(&TrainOptions { folder: RunFolder::Resume(pieces.clone()), ..new_run(&pieces, "synthetic", &[]) }).unwrap();
    assert_same_tensors(&last(&whole), &last(&pieces));
    assert_eq!(losses(&whole), losses(&pieces));

    let (next, longer) =
        (folder.path().join("next"), ["text.sequence_length=32", "text.max_predictions=5", "train.steps=2"]);
    train(&new_run(&next, "synthetic", &longer).with_start(StartRecipe::init_from(&whole))).unwrap();
    assert_eq!((last(&next).state.step, last(&next).state.schedule_step), (2, 2));
    let fresh = folder.path().join("fresh");
    train(&new_run(&fresh, "synthetic", &longer)).unwrap();
    assert_ne!(losses(&next)[0], losses(&fresh)[0]);
    let too_long = ["text.sequence_length=1024", "train.steps=2"];
    let error = train(&new_run(&folder.path().join("x"), "synthetic", &too_long)).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Usage && error.to_string().contains("1024; the model has 512 positions"),
        "{error}"
    );
}

#[test]
fn text_is_trained_on_evaluated_exported_and_filled_in() {
    let folder = TempDir::new().unwrap();
    let (run, data) = (folder.path().join("run"), text(folder.path()));
    let data = data.to_str().unwrap();
    let report = train(&new_run(&run, data, &["text.masking=dynamic"])).unwrap();
    let names = ["mlm_accuracy", "mlm_loss", "nsp_accuracy", "nsp_loss", "unigram_entropy"];
    assert_eq!(report.metrics.keys().map(String::as_str).collect::<Vec<_>>(), names);
    assert!(report.metrics["unigram_entropy"] > 0.5 && report.metrics["unigram_entropy"] < (18.0_f64).ln());
    assert!(report.best.as_ref().is_some_and(|best| best.metric == "mlm_loss"));
    let events = read_events(&run.join("events.jsonl")).unwrap();
    let parts =
        events.iter().find_map(|event| if let EventBody::Step(info) = &event.body { Some(&info.parts) } else { None });
    assert!(parts.unwrap().contains_key("mlm_loss") && parts.unwrap().contains_key("nsp_accuracy"));

    // A batch size that divides nothing: what fills the last batch up is not counted.
    let latest = run.join("checkpoints/step-000006");
    let evaluated = |batch_size: usize, weights: &Path| {
        evaluate("bert-tiny", weights, Path::new(data), &EvaluateOptions { batch_size, ..EvaluateOptions::default() })
            .unwrap()
    };
    let (one, many) = (evaluated(1, &latest), evaluated(7, &latest));
    assert_eq!(one.counts, many.counts);
    assert!(one.samples > 7 && one.samples % 7 != 0, "{}", one.samples);
    for (name, value) in &one.metrics {
        assert!((value - many.metrics[name]).abs() < 1e-5 && (value - report.metrics[name]).abs() < 1e-5, "{name}");
    }

    let exported = folder.path().join("exported");
    let to = ConvertOptions { to: Names::HuggingFace, ..ConvertOptions::default() };
    assert_eq!(convert_weights(&latest, &exported, &to).unwrap().model, "bert-tiny");
    let config: serde_json::Value = serde_json::from_slice(&fs::read(exported.join("config.json")).unwrap()).unwrap();
    assert_eq!((config["vocab_size"].as_u64(), config["num_hidden_layers"].as_u64()), (Some(24), Some(2)));
    assert_eq!(evaluated(7, &exported).metrics, many.metrics);
    let tensors = read_safetensors(&exported.join("model.safetensors")).unwrap();
    assert!(tensors.iter().any(|tensor| tensor.name == "bert.encoder.layer.1.attention.self.query.weight"));

    let texts = ["the [MASK] bird sleeps near [MASK] .".to_owned()];
    let filled = fill_masks("bert-tiny", &exported, &texts, &FillOptions::default()).unwrap();
    let filled: Vec<_> = filled.into_iter().map(Result::unwrap).collect();
    assert_eq!(filled[0].masks.iter().map(|mask| mask.position).collect::<Vec<_>>(), [2, 6]);
    for mask in &filled[0].masks {
        assert!(mask.tokens.len() == 5 && mask.tokens.is_sorted_by(|a, b| a.probability >= b.probability));
    }
    let bad = ["no gap".to_owned(), texts[0].clone(), format!("[MASK] {}", "bird ".repeat(9000))];
    let mut mixed = fill_masks("bert-tiny", &run, &bad, &FillOptions::default()).unwrap();
    let too_long = mixed.pop().unwrap().unwrap_err().to_string();
    assert!(too_long.len() < 250 && too_long.contains("9003 tokens") && too_long.contains("positions"), "{too_long}");
    assert_eq!(mixed.pop().unwrap().unwrap().text, texts[0]);
    let error = mixed.pop().unwrap().unwrap_err();
    assert!(error.to_string().contains("needs a [MASK]"), "{error}");
    let error = fill_masks("bert-mini", &exported, &texts, &FillOptions::default()).unwrap_err();
    assert!(error.to_string().contains("holds a BERT of 2 layers, 128 wide: bert-tiny"), "{error}");
}

#[test]
fn another_vocabulary_is_refused() {
    let (folder, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (run, data, reversed) = (folder.path().join("run"), text(folder.path()), reversed_text(other.path()));
    let steps = ["train.steps=2"];
    train(&new_run(&run, data.to_str().unwrap(), &steps)).unwrap();
    let exported = folder.path().join("exported");
    let to = ConvertOptions { to: Names::HuggingFace, ..ConvertOptions::default() };
    convert_weights(&run, &exported, &to).unwrap();
    let open = |path: &Path| Vocabulary::open(path).unwrap().identity();
    let (own, foreign) = (open(&run.join("vocab.txt")), open(&reversed.join("vocab.txt")));
    assert_eq!(last(&run).state.vocabulary, Some(own.clone()));
    let names_both = |error: TrainError| {
        let text = error.to_string();
        assert!(error.kind() == ErrorKind::Usage && text.contains("was trained with another one"), "{text}");
        assert!(text.contains(&own.to_string()) && text.contains(&foreign.to_string()), "{text}");
    };

    let texts = ["the [MASK]".to_owned()];
    let filled = |weights: &Path, vocab: &Path| {
        let options = FillOptions { vocab: Some(vocab.to_owned()), ..FillOptions::default() };
        fill_masks("bert-tiny", weights, &texts, &options)
    };
    for weights in [&run, &exported] {
        names_both(filled(weights, &reversed.join("vocab.txt")).unwrap_err());
        names_both(evaluate("bert-tiny", weights, &reversed, &EvaluateOptions::default()).unwrap_err());
        evaluate("bert-tiny", weights, &data, &EvaluateOptions::default()).unwrap();
    }
    for start in [StartRecipe::weights(&run), StartRecipe::weights(&exported), StartRecipe::init_from(&run)] {
        let again = new_run(&other.path().join("again"), reversed.to_str().unwrap(), &steps);
        names_both(train(&again.with_start(start)).unwrap_err());
        assert!(!other.path().join("again").exists());
    }

    // Of weights alone nothing but the size is known.
    let file = last_folder(&run).join("model.safetensors");
    let alone = other.path().join("alone.safetensors");
    fs::copy(file, &alone).unwrap();
    filled(&alone, &run.join("vocab.txt")).unwrap();
    let long = other.path().join("long.txt");
    let more: String = (0..200).map(|number| format!("more{number}\n")).collect();
    fs::write(&long, fs::read_to_string(run.join("vocab.txt")).unwrap() + &more).unwrap();
    let error = filled(&alone, &long).unwrap_err().to_string();
    assert!(error.contains("218 entries") && error.ends_with("has embeddings of 24 words"), "{error}");
    // A run whose vocabulary was replaced is not used with it.
    fs::copy(reversed.join("vocab.txt"), run.join("vocab.txt")).unwrap();
    names_both(fill_masks("bert-tiny", &run, &texts, &FillOptions::default()).unwrap_err());
    names_both(convert_weights(&run, &other.path().join("converted"), &to).unwrap_err());
}

#[test]
fn data_and_recipes_must_suit_each_other() {
    let folder = TempDir::new().unwrap();
    let data = text(folder.path());
    let refused = |source: &str, overrides: &[&str]| {
        let error = train(&new_run(&folder.path().join("x"), source, overrides)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        error.to_string()
    };
    let text = refused(data.to_str().unwrap(), &["text.masking=static"]);
    assert!(text.contains("text.masking is static") && text.contains("again in each epoch"), "{text}");
    assert!(refused("nowhere", &[]).contains("nowhere"));
    assert!(refused("shapes", &[]).contains("shapes"));
}
