//! Pre-training of a small ELECTRA: runs resume bit for bit, and what they leave can be used.

use crate::common::text::{losses, text};
use crate::common::{assert_same_tensors, last};
use bessemer_train::checkpoint::load_weights;
use bessemer_train::recipe::StartRecipe;
use bessemer_train::tasks::electra::{ClassifyOptions, classify_tokens};
use bessemer_train::{
    ConvertOptions, ErrorKind, EvalReport, EvaluateOptions, Names, Recipe, RunFolder, TrainOptions, convert_weights,
    evaluate, train,
};
use bessemer_weights::{NamedTensor, WeightOptions, read_safetensors, write_safetensors};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const RECIPE: &str = r#"
name = "tiny-electra"
model = { name = "electra-mini", vocab_multiple = 8, word_bias = "log_frequencies" }
data = {}
text = { sequence_length = 16, masked_lm_prob = 0.2 }
train = { batch_size = 2, accumulation = 2, steps = 6, seed = 3, clip_norm = 1.0 }
optimizer = { kind = "lamb", betas = [0.878, 0.974], weight_decay = 0.01, decay_exclude = "layer_norm_and_bias" }
schedule = { kind = "polynomial", base_lr = 0.002, power = 0.5, warmup_steps = 2 }
eval = { batch_size = 4 }
checkpoint = { every_steps = 2 }
"#;

fn new_run(folder: &Path, data: &str, overrides: &[&str]) -> TrainOptions {
    let source = format!("data.source={data}");
    let overrides = overrides.iter().chain([&source.as_str()]).map(|text| text.parse().unwrap()).collect::<Vec<_>>();
    let recipe = Recipe::from_toml(RECIPE, "tiny-electra", &overrides).unwrap();
    let mut options = TrainOptions::new(recipe, RunFolder::New(folder.to_owned()));
    options.compute.device.threads = 1;
    options
}

#[test]
fn runs_resume_bit_for_bit() {
    let folder = TempDir::new().unwrap();
    let data = text(folder.path());
    let data = data.to_str().unwrap();
    let (whole, pieces) = (folder.path().join("whole"), folder.path().join("pieces"));
    train(&new_run(&whole, data, &[])).unwrap();
    let mut options = new_run(&pieces, data, &[]);
    options.run_steps = Some(3);
    assert_eq!(train(&options).unwrap_err().kind(), ErrorKind::Interrupted);
    train(&TrainOptions { folder: RunFolder::Resume(pieces.clone()), ..new_run(&pieces, data, &[]) }).unwrap();
    assert_same_tensors(&last(&whole), &last(&pieces));
    assert_eq!(losses(&whole), losses(&pieces));

    // One that dies before its first checkpoint starts over, at the same weights.
    let lost = folder.path().join("lost");
    let mut options = new_run(&lost, data, &[]);
    options.run_steps = Some(1);
    assert_eq!(train(&options).unwrap_err().kind(), ErrorKind::Interrupted);
    fs::remove_dir_all(lost.join("checkpoints")).unwrap();
    fs::create_dir(lost.join("checkpoints")).unwrap();
    train(&TrainOptions { folder: RunFolder::Resume(lost.clone()), ..new_run(&lost, data, &[]) }).unwrap();
    assert_same_tensors(&last(&whole), &last(&lost));
}

/// Scores of one set in batches of two sizes: the same samples were drawn.
#[track_caller]
fn assert_same_scores(a: &EvalReport, b: &EvalReport) {
    assert_eq!(a.counts, b.counts);
    for (name, value) in &a.metrics {
        assert!((value - b.metrics[name]).abs() < 1e-5, "{name}: {value} and {}", b.metrics[name]);
    }
}

#[test]
fn text_is_trained_on_evaluated_exported_and_judged() {
    let folder = TempDir::new().unwrap();
    let (run, data) = (folder.path().join("run"), text(folder.path()));
    let data = data.to_str().unwrap();
    let report = train(&new_run(&run, data, &[])).unwrap();
    assert!(report.best.as_ref().is_some_and(|best| best.metric == "loss"));
    let metrics = &report.metrics;
    // Six steps change little: the generator begins at the frequencies of the words, the discriminator undecided.
    assert!((metrics["mlm_loss"] - metrics["unigram_entropy"]).abs() < 0.5, "{metrics:?}");
    assert!((metrics["loss"] - metrics["mlm_loss"] - 50.0 * metrics["disc_loss"]).abs() < 1e-9, "{metrics:?}");

    let latest = run.join("checkpoints/step-000006");
    let evaluated = |batch_size: usize| {
        let options = EvaluateOptions { batch_size, ..EvaluateOptions::default() };
        evaluate("electra-mini", &latest, Path::new(data), &options).unwrap()
    };
    assert_eq!(evaluated(4).metrics, *metrics, "samples of an evaluation are the same each time");
    assert_same_scores(&evaluated(7), &evaluated(4));
    assert_same_scores(&evaluated(1), &evaluated(4));

    let exported = folder.path().join("exported");
    let to = ConvertOptions { to: Names::HuggingFace, ..ConvertOptions::default() };
    assert_eq!(convert_weights(&latest, &exported, &to).unwrap().model, "electra-mini");
    for (part, architecture, width, tensor) in [
        ("discriminator", "ElectraForPreTraining", 256, "discriminator_predictions.dense_prediction.weight"),
        ("generator", "ElectraForMaskedLM", 64, "generator_lm_head.weight"),
    ] {
        let part = exported.join(part);
        let config: serde_json::Value = serde_json::from_slice(&fs::read(part.join("config.json")).unwrap()).unwrap();
        assert_eq!((&config["architectures"][0], &config["hidden_size"]), (&architecture.into(), &width.into()));
        assert_eq!((&config["embedding_size"], &config["vocab_size"]), (&128.into(), &24.into()));
        let tensors = read_safetensors(&part.join("model.safetensors")).unwrap();
        assert!(tensors.iter().any(|known| known.name == tensor), "{tensor}");
        assert!(part.join("vocab.txt").is_file());
    }

    let weights = |path: &Path| {
        let mut tensors = load_weights(path, WeightOptions::default()).unwrap();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors
    };
    assert_eq!(weights(&exported), weights(&latest), "both folders together are what they were made of");
    let mut options = new_run(&folder.path().join("again"), data, &[]);
    options.recipe.start = StartRecipe::weights(&exported);
    assert!(train(&options).unwrap().metrics["loss"] < metrics["loss"], "six steps more");

    let published = |weights: &Path| evaluate("electra-mini", weights, Path::new(data), &EvaluateOptions::default());
    assert!(published(&exported).unwrap().counts["disc_weight"] > 0);
    let error = published(&exported.join("discriminator")).unwrap_err().to_string();
    assert!(error.contains("both networks are evaluated together"), "{error}");

    let texts = ["the bird sleeps near .".to_owned()];
    let classify_all = |weights: &Path, texts: &[String]| -> Vec<_> {
        let evaluated = classify_tokens("electra-mini", weights, texts, &ClassifyOptions::default()).unwrap();
        evaluated.into_iter().map(|evaluated| evaluated.map_err(|error| error.to_string())).collect()
    };
    let said: Vec<_> = classify_all(&latest, &texts).into_iter().map(Result::unwrap).collect();
    assert_eq!(
        said[0].tokens.iter().map(|word| word.token.as_str()).collect::<Vec<_>>(),
        ["the", "bird", "sleeps", "near", "."]
    );
    assert!(said[0].tokens.iter().all(|word| (0.0..1.0).contains(&word.replaced)));
    let alone = classify_all(&exported.join("discriminator"), &["".to_owned(), texts[0].clone()]);
    assert!(alone[0].as_ref().unwrap_err().contains("it needs at least one token"));
    assert_eq!(alone[1].as_ref().unwrap(), &said[0]);

    let other = exported.join("generator/model.safetensors");
    let mut tensors = read_safetensors(&other).unwrap();
    let place = tensors.iter().position(|tensor| tensor.name == "electra.embeddings.LayerNorm.weight").unwrap();
    tensors[place] = NamedTensor::from_f32(tensors[place].name.clone(), [128], &[0.5; 128]).unwrap();
    fs::remove_file(&other).unwrap();
    write_safetensors(&other, &tensors).unwrap();
    let error = load_weights(&exported, WeightOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`electra.embeddings.LayerNorm.weight`: differs from the discriminator's"), "{error}");

    assert!(classify_all(&run, &[" ".to_owned()])[0].as_ref().unwrap_err().contains("it needs at least one token"));
    let error = classify_tokens("electra-small", &exported.join("discriminator"), &texts, &ClassifyOptions::default());
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("holds an ELECTRA of 4 layers, 256 wide, embeddings of 128: electra-mini")
    );
}

#[test]
fn words_can_be_put_in_without_a_generator() {
    let folder = TempDir::new().unwrap();
    let (run, data) = (folder.path().join("run"), text(folder.path()));
    let data = data.to_str().unwrap();
    let uniform = ["model.generator=uniform", "model.disallow_correct=true"];
    let error = train(&new_run(&run, data, &uniform)).unwrap_err();
    assert!(error.to_string().contains("model.word_bias is log_frequencies"), "{error}");
    let report = train(&new_run(&run, data, &[&uniform[..], &["model.word_bias=zeros"]].concat())).unwrap();
    let metrics = &report.metrics;
    assert!((metrics["mlm_loss"] - 24f64.ln()).abs() < 1e-5, "all of 24 words are as likely: {metrics:?}");
    assert_eq!((metrics["mlm_accuracy"], metrics["sampled_accuracy"]), (0.0, 0.0));
    assert!(last(&run).model.iter().all(|tensor| !tensor.name.starts_with("generator")));
    // Words of the batch are in evaluations those of the whole set.
    let of_batch = folder.path().join("batch");
    let frequent = ["model.generator=batch", "model.disallow_correct=true", "model.word_bias=zeros"];
    let metrics = train(&new_run(&of_batch, data, &frequent)).unwrap().metrics;
    assert!((metrics["mlm_loss"] - metrics["unigram_entropy"]).abs() < 0.5, "{metrics:?}");
    assert_eq!((metrics["mlm_accuracy"], metrics["sampled_accuracy"]), (0.0, 0.0));
    for run in [&run, &of_batch] {
        let evaluated = |batch_size: usize| {
            let options = EvaluateOptions { batch_size, ..EvaluateOptions::default() };
            evaluate("electra-mini", run, Path::new(data), &options).unwrap()
        };
        assert!(evaluated(5).counts["disc_replaced"] > 0);
        assert_same_scores(&evaluated(5), &evaluated(2));
    }

    let exported = folder.path().join("exported");
    let to = ConvertOptions { to: Names::HuggingFace, ..ConvertOptions::default() };
    convert_weights(&run, &exported, &to).unwrap();
    assert!(exported.join("discriminator/config.json").is_file() && !exported.join("generator").exists());
}
