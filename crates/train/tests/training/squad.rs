//! Fine-tuning a small ELECTRA on questions: a handful is learnt, runs resume bit for bit, and answers are scored as the official
//! scripts do.

use crate::common::ranks::trained;
use crate::common::text::losses;
use crate::common::{assert_same_tensors, last};
use bessemer_data::squad::{Predictions, SquadSet, read_no_answer_probabilities, read_predictions};
use bessemer_metrics::squad::{Gold, Predicted, score_v1, score_v2};
use bessemer_models::bert::Sequences;
use bessemer_models::electra::{ElectraConfig, PretrainingOptions, evaluate as pretraining};
use bessemer_nn::initialise;
use bessemer_train::events::{EventBody, read_events};
use bessemer_train::recipe::StartRecipe;
use bessemer_train::tasks::squad::{AskOptions, Reader};
use bessemer_train::{
    ConvertOptions, ErrorKind, EvalReport, EvaluateOptions, Names, Recipe, RunFolder, TrainOptions, convert_weights,
    evaluate, train,
};
use bessemer_weights::{NamedTensor, read_safetensors, write_safetensors};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const RECIPE: &str = r#"
name = "tiny-squad"
model = { name = "electra-mini-squad", hidden_dropout = 0.0, attention_dropout = 0.0 }
data = {}
squad = { sequence_length = 24, doc_stride = 6, max_query_length = 8, beam = 3, null_threshold = 0.0 }
train = { batch_size = 8, steps = 100, seed = 3, clip_norm = 1.0 }
optimizer = { kind = "adamw", weight_decay = 0.01, decay_exclude = "layer_norm_and_bias", layer_decay = 0.95 }
schedule = { kind = "polynomial", base_lr = 1e-3, warmup_fraction = 0.1, warmup_form = "from_first" }
eval = { batch_size = 4 }
loader = { workers = 1 }
"#;

const CONTEXTS: [&str; 2] =
    ["The cat sat on the red mat, and the dog ran to the blue house near the river.", "A bird sang in the old tree."];
/// Question, its paragraph, and its answer.
const QUESTIONS: [(&str, usize, &str); 6] = [
    ("Where did the cat sit?", 0, "the red mat"),
    ("Who ran?", 0, "the dog"),
    ("Where did the dog run?", 0, "the blue house"),
    ("What is near the house?", 0, "the river"),
    ("Who sang?", 1, "A bird"),
    ("Where did it sing?", 1, "the old tree"),
];
const WORDS: &str = "the cat sat on red mat , and dog ran to blue house near river . a bird sang in old tree where did sit ? \
                     who run what is it sing fly";

fn vocabulary(folder: &Path) -> PathBuf {
    let path = folder.join("vocab.txt");
    let lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].into_iter().chain(WORDS.split_whitespace());
    fs::write(&path, lines.map(|word| format!("{word}\n")).collect::<String>()).unwrap();
    path
}

/// The questions in the form of SQuAD; in version 2.0 with one in each paragraph that has no answer.
fn questions(version: u32) -> Value {
    let answerable = |number: usize| {
        let (question, paragraph, answer) = QUESTIONS[number];
        let start = CONTEXTS[paragraph].find(answer).unwrap();
        let mut entry = json!({"id": format!("q{number}"), "question": question,
                               "answers": [{"text": answer, "answer_start": start}]});
        if version == 2 {
            entry["is_impossible"] = json!(false);
        }
        entry
    };
    let paragraph = |paragraph: usize| {
        let numbers = (0..QUESTIONS.len()).filter(|&number| QUESTIONS[number].1 == paragraph);
        let mut asked: Vec<Value> = numbers.map(answerable).collect();
        if version == 2 {
            asked.push(json!({"id": format!("none{paragraph}"), "question": "Who did fly?", "answers": [],
                              "is_impossible": true}));
        }
        json!({"context": CONTEXTS[paragraph], "qas": asked})
    };
    json!({"data": [{"title": "t", "paragraphs": [paragraph(0), paragraph(1)]}]})
}

/// A folder with a vocabulary beside the questions of a version, which are trained and evaluated on.
fn world(version: u32) -> TempDir {
    let folder = TempDir::new().unwrap();
    vocabulary(folder.path());
    for half in ["train", "dev"] {
        fs::write(folder.path().join(format!("{half}-v{version}.json")), questions(version).to_string()).unwrap();
    }
    folder
}

fn new_run(run: &Path, data: &Path, overrides: &[&str]) -> TrainOptions {
    let own = |name: &str, place: &str| format!("{name}={}{place}", data.display());
    let given = [own("data.source", ""), own("squad.vocab", "/vocab.txt"), "squad.cache=false".to_owned()];
    let overrides = given.iter().map(String::as_str).chain(overrides.iter().copied());
    let overrides: Vec<_> = overrides.map(|text| text.parse().unwrap()).collect();
    let recipe = Recipe::from_toml(RECIPE, "tiny-squad", &overrides).unwrap();
    let mut options = TrainOptions::new(recipe, RunFolder::New(run.to_owned()));
    options.compute.device.threads = 1;
    options
}

fn evaluated(weights: &Path, data: &Path, batch_size: usize, out: Option<&Path>) -> EvalReport {
    let options = EvaluateOptions { batch_size, out: out.map(Path::to_owned), ..EvaluateOptions::default() };
    evaluate("electra-mini-squad", weights, data, &options).unwrap()
}

/// Questions whose windows lie on several ranks: the answers are put together, and the scores are those of one rank.
#[test]
fn answers_of_several_ranks_are_scored_together() {
    let data = world(2);
    let folder = TempDir::new().unwrap();
    let ranks = 3;
    let settings = ["train.accumulation=3", "train.steps=20", "train.batch_size=3", "eval.batch_size=2"];
    let [one, all] = ["one", "all"].map(|part| folder.path().join(part));
    let alone = train(&new_run(&one, data.path(), &settings)).unwrap();
    let together = trained(ranks, |_| new_run(&all, data.path(), &settings));
    assert!(alone.metrics["f1"] > 0.0, "{:?}", alone.metrics);
    assert_eq!(alone.metrics, together.metrics);
    assert_same_tensors(&last(&one), &last(&all));
    let answers = |run: &Path| fs::read(run.join("predictions").join(Predictions::FILE)).unwrap();
    assert_eq!(answers(&one), answers(&all));
}

fn gold(set: &SquadSet) -> Vec<Gold<'_>> {
    let questions = set.questions().iter();
    questions
        .map(|one| Gold { id: &one.id, answers: one.answers.iter().map(|answer| answer.text.as_str()).collect() })
        .collect()
}

#[test]
fn a_handful_of_questions_is_learnt() {
    let folder = world(1);
    let (run, data) = (folder.path().join("run"), folder.path());
    let report = train(&new_run(&run, data, &[])).unwrap();
    assert_eq!(report.metrics.keys().collect::<Vec<_>>(), ["exact", "f1"]);
    assert!(report.metrics["f1"] > 0.9, "{:?}", report.metrics);
    assert!(report.best.as_ref().is_some_and(|best| best.metric == "f1"));
    let events = read_events(&run.join("events.jsonl")).unwrap();
    let parts =
        events.iter().find_map(|event| if let EventBody::Step(info) = &event.body { Some(&info.parts) } else { None });
    assert_eq!(parts.unwrap().keys().collect::<Vec<_>>(), ["end_loss", "start_loss"]);

    // A batch size that divides nothing, and the vocabulary of the run.
    fs::remove_file(data.join("vocab.txt")).unwrap();
    let out = folder.path().join("answers");
    let again = evaluated(&run, data, 3, Some(&out));
    assert_eq!(again.metrics, report.metrics);
    assert!(again.samples > 6 && !again.samples.is_multiple_of(3), "several windows: {}", again.samples);
    assert_eq!((again.counts["total"], again.counts["windows"]), (6, again.samples));
    for name in [Predictions::FILE, Predictions::N_BEST_FILE] {
        assert_eq!(fs::read(out.join(name)).unwrap(), fs::read(run.join("predictions").join(name)).unwrap(), "{name}");
    }
    assert!(!out.join(Predictions::NULL_FILE).exists());
    let set = SquadSet::open(&data.join("dev-v1.json")).unwrap();
    let predicted = read_predictions(&out.join(Predictions::FILE)).unwrap();
    let predicted: Predicted<'_> = predicted.iter().map(|(id, text)| (id.as_str(), text.as_str())).collect();
    let official = score_v1(&gold(&set), &predicted).unwrap();
    assert_eq!((official.all.exact / 100.0, official.all.f1 / 100.0), (again.metrics["exact"], again.metrics["f1"]));

    let mut reader =
        Reader::open("electra-mini-squad", &run, &AskOptions { top_k: 2, ..AskOptions::default() }).unwrap();
    let reported = RefCell::new(Vec::new());
    let notify = |done: usize, all: usize| reported.borrow_mut().push((done, all));
    let mut answers = reader.ask(CONTEXTS[0], &["Where did the cat sit?", " ", "Who ran?"], &notify).unwrap();
    assert_eq!(reported.into_inner(), [(1, 4), (2, 4), (3, 4), (4, 4)], "two windows for each question");
    assert!(answers.remove(1).unwrap_err().to_string().contains("the question is empty"));
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    let texts: Vec<&str> = answers.iter().map(|answered| answered.answer.as_str()).collect();
    assert_eq!(texts, [predicted["q0"], predicted["q1"]]);
    assert!(answers[0].candidates.len() == 2 && answers[0].no_answer_score.is_none());
    assert!(answers[0].probability >= answers[0].candidates[1].probability && answers[0].probability <= 1.0);
    for (context, question) in [("", "Who?"), ("a cat", " ")] {
        let error = reader.ask(context, &[question], &|_, _| ()).and_then(|mut results| results.remove(0)).unwrap_err();
        assert!(error.to_string().contains("is empty") && error.kind() == ErrorKind::Usage, "{error}");
    }
}

#[test]
fn questions_without_an_answer_are_judged_apart() {
    let (first, second) = (world(1), world(2));
    let run = second.path().join("run");
    let report = train(&new_run(&run, second.path(), &["train.steps=2"])).unwrap();
    let names = ["exact", "f1", "has_ans_exact", "has_ans_f1", "no_ans_exact", "no_ans_f1"];
    assert_eq!(report.metrics.keys().collect::<Vec<_>>(), names);
    let events = read_events(&run.join("events.jsonl")).unwrap();
    let parts =
        events.iter().find_map(|event| if let EventBody::Step(info) = &event.body { Some(&info.parts) } else { None });
    assert!(parts.unwrap().contains_key("impossible_loss"));
    let written = run.join("predictions");
    let scores = read_no_answer_probabilities(&written.join(Predictions::NULL_FILE)).unwrap();
    assert_eq!(scores.len(), 8);
    let predicted = read_predictions(&written.join(Predictions::FILE)).unwrap();
    assert!(scores.iter().zip(&predicted).all(|((_, score), (_, text))| *score <= 0.0 || text.is_empty()));
    let predicted: Predicted<'_> = predicted.iter().map(|(id, text)| (id.as_str(), text.as_str())).collect();
    let set = SquadSet::open(&second.path().join("dev-v2.json")).unwrap();
    let official = score_v2(&gold(&set), &predicted, None).unwrap();
    assert_eq!(official.all.f1 / 100.0, report.metrics["f1"]);
    assert_eq!(official.no_answer.unwrap().exact / 100.0, report.metrics["no_ans_exact"]);

    // Such weights also answer where every question has an answer, but not the other way round.
    assert_eq!(evaluated(&run, first.path(), 4, None).metrics.len(), 2);
    let answering = first.path().join("run");
    train(&new_run(&answering, first.path(), &["train.steps=1"])).unwrap();
    let options = EvaluateOptions::default();
    let error = evaluate("electra-mini-squad", &answering, second.path(), &options).unwrap_err();
    assert!(error.to_string().contains("2.0") && error.to_string().contains("trained on 1.1"), "{error}");

    let plain = first.path().join("plain");
    let overrides = ["train.steps=2", "squad.head=plain", "model.activation=gelu_tanh"];
    let report = train(&new_run(&plain, second.path(), &overrides)).unwrap();
    assert_eq!(evaluated(&plain, second.path(), 3, None).metrics, report.metrics);
}

#[test]
fn weights_go_into_folders_of_hugging_face() {
    let folder = world(1);
    for (name, head, tensor) in [("a", "joint", "end_logits.dense_0.weight"), ("b", "plain", "qa_outputs.bias")] {
        let (run, exported) = (folder.path().join(name), folder.path().join(format!("exported-{name}")));
        let head = format!("squad.head={head}");
        train(&new_run(&run, folder.path(), &[&head, "train.steps=1", "squad.beam=5", "model.activation=gelu_tanh"]))
            .unwrap();
        let to = ConvertOptions { to: Names::HuggingFace, ..ConvertOptions::default() };
        assert_eq!(convert_weights(&run, &exported, &to).unwrap().model, "electra-mini-squad");
        let config: Value = serde_json::from_slice(&fs::read(exported.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["architectures"], json!(["ElectraForQuestionAnswering"]));
        assert_eq!(config["hidden_act"], json!("gelu_new"));
        let tensors = read_safetensors(&exported.join("model.safetensors")).unwrap();
        assert!(tensors.iter().any(|found| found.name == tensor));
        // The windows are those of SQuAD then, and the answers the same, as both show all of the text.
        let text = "A bird sang.";
        let answer = |weights: &Path| {
            let mut reader = Reader::open("electra-mini-squad", weights, &AskOptions::default()).unwrap();
            reader.ask(text, &["Who sang?"], &|_, _| ()).unwrap().remove(0).unwrap().answer
        };
        assert_eq!(answer(&run), answer(&exported));
    }
}

#[test]
fn runs_resume_bit_for_bit() {
    let folder = world(2);
    let (whole, pieces) = (folder.path().join("whole"), folder.path().join("pieces"));
    let overrides = ["train.steps=5", "train.batch_size=4", "model.hidden_dropout=0.1"];
    train(&new_run(&whole, folder.path(), &overrides)).unwrap();
    let mut options = new_run(&pieces, folder.path(), &overrides);
    options.run_steps = Some(3);
    assert_eq!(train(&options).unwrap_err().kind(), ErrorKind::Interrupted);
    let resumed = new_run(&pieces, folder.path(), &overrides);
    train(&TrainOptions { folder: RunFolder::Resume(pieces.clone()), ..resumed }).unwrap();
    assert_same_tensors(&last(&whole), &last(&pieces));
    assert_eq!(losses(&whole), losses(&pieces));
}

/// A pre-trained ELECTRA, generator and all, of more words than the vocabulary has, with a vocabulary beside it.
fn pretrained(folder: &Path, leave_out: &str) -> PathBuf {
    let weights = folder.join(format!("weights{}", leave_out.len()));
    fs::create_dir_all(&weights).unwrap();
    vocabulary(&weights);
    let mut config = ElectraConfig::mini();
    config.encoder.vocab_size = 48;
    let sequences = Sequences { batch: 1, length: 8, predictions: 1 };
    let specs = pretraining(&config, sequences, &PretrainingOptions { mask_token: 4, ..PretrainingOptions::new(0.25) });
    let specs = specs.unwrap().specs;
    let tensors: Vec<NamedTensor<'static>> = specs
        .iter()
        .filter(|spec| leave_out.is_empty() || !spec.name.contains(leave_out))
        .map(|spec| {
            let data = spec.to_external(&initialise(spec, 7));
            let tensor = NamedTensor::from_f32(&spec.name, spec.external_shape().dims(), &data).unwrap();
            NamedTensor { data: Cow::Owned(tensor.data.into_owned()), ..tensor }
        })
        .collect();
    write_safetensors(&weights.join("model.safetensors"), &tensors).unwrap();
    fs::write(weights.join("config.json"), json!({"hidden_act": "gelu"}).to_string()).unwrap();
    weights
}

#[test]
fn pretrained_encoders_begin_runs() {
    let folder = world(1);
    let weights = pretrained(folder.path(), "");
    let begun = |name: &str, start: &Path, overrides: &[&str]| {
        let run = folder.path().join(name);
        let overrides = [&["squad.vocab="], overrides].concat();
        let options = new_run(&run, folder.path(), &overrides);
        train(&options.with_start(StartRecipe::weights(start))).map(|_| run)
    };
    let run = begun("run", &weights, &["train.steps=2", "schedule.base_lr=1e-9"]).unwrap();
    let reported = read_events(&run.join("events.jsonl")).unwrap();
    let reported = reported.iter().find_map(|event| match &event.body {
        EventBody::Warning(warning) => Some(serde_json::to_string(warning).unwrap()),
        _ => None,
    });
    assert!(reported.unwrap().contains("has no start_logits, end_logits: these heads are drawn at random"));
    assert!(
        run.join("vocab.txt").is_file() && run.join("checkpoints/step-000000").is_dir(),
        "it can be resumed at once"
    );
    let find = |tensors: &[NamedTensor<'_>], name: &str| {
        tensors.iter().find(|tensor| tensor.name == name).map(|tensor| tensor.to_f32().unwrap()).unwrap()
    };
    let name = "electra.encoder.layer.3.output.dense.weight";
    let given = read_safetensors(&weights.join("model.safetensors")).unwrap();
    let (given, found) = (find(&given, name), find(&last(&run).model, name));
    assert!(given.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-6), "the encoder is that of the weights");

    // A former fine-tuning goes on, with its heads.
    let again = begun("again", &run, &["train.steps=1"]).unwrap();
    let events = read_events(&again.join("events.jsonl")).unwrap();
    assert!(!events.iter().any(|event| matches!(event.body, EventBody::Warning(_))));

    let refused = |start: &Path, overrides: &[&str], parts: &[&str]| {
        let error = begun("x", start, overrides).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
    };
    let lacking = pretrained(folder.path(), "layer.2.output");
    refused(&lacking, &[], &["missing: electra.encoder.layer.2.output.dense.weight"]);
    let small = ["model.name=electra-small-squad"];
    refused(&weights, &small, &["holds an ELECTRA of 4 layers, 256 wide", "electra-mini-squad"]);
    refused(&weights, &["model.activation=gelu_tanh"], &["model.activation is gelu_tanh", "trained with gelu"]);
    refused(&folder.path().join("nowhere"), &[], &["nowhere"]);
    let error = evaluate("electra-mini-squad", &weights, folder.path(), &EvaluateOptions::default()).unwrap_err();
    assert!(error.to_string().contains("no head that answers questions"), "{error}");
    fs::remove_file(weights.join("vocab.txt")).unwrap();
    fs::remove_file(folder.path().join("vocab.txt")).unwrap();
    refused(&weights, &[], &["the vocabulary is not given", "there is no vocab.txt beside", "--set squad.vocab=FILE"]);
}

#[test]
fn data_that_does_not_suit_is_told() {
    let (folder, other) = (world(1), world(2));
    let data = folder.path();
    let refused = |data: &Path, overrides: &[&str], parts: &[&str]| {
        let error = train(&new_run(&folder.path().join("x"), data, overrides)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
    };
    let dev = format!("squad.dev_file={}", other.path().join("dev-v2.json").display());
    refused(data, &[&dev], &["dev-v2.json is of SQuAD 2.0", "train-v1.json of 1.1"]);
    refused(data, &["squad.vocab="], &["the vocabulary is not given", "--set squad.vocab=FILE"]);
    refused(data, &["data.source="], &["data.source is not given", "--data"]);
    let empty = TempDir::new().unwrap();
    vocabulary(empty.path());
    refused(empty.path(), &[], &["holds no train-*.json", "squad.train_file"]);
    refused(data, &["squad.sequence_length=600"], &["600", "512 positions"]);
    refused(data, &["train.batch_size=999"], &["batch size is 999"]);
    fs::copy(data.join("train-v1.json"), data.join("train-again.json")).unwrap();
    refused(data, &[], &["train-again.json, train-v1.json", "choose one: --set squad.train_file=FILE"]);
    let chosen = new_run(&data.join("run"), data, &["squad.train_file=train-again.json", "train.steps=1"]);
    train(&chosen).unwrap();
}
