use std::fs;
use std::path::Path;

use bessemer_data::squad::{
    AnswerOptions, Answers, Predictions, SquadSet, Version, read_no_answer_probabilities, read_predictions,
};
use serde_json::{Value, json};

use crate::world::{build, small, words};

fn predictions(version: Version) -> Predictions {
    let set = SquadSet::ask("the cat (sat)", &["who?", "the?"]);
    let features = build(&set, small(false));
    let tokenizer = words();
    let mut answers =
        Answers::new(&set, &features, &tokenizer, AnswerOptions { n_best: 16, ..AnswerOptions::new(version) });
    for window in 0..2 {
        let mut logits = vec![0.0; 16];
        logits[if window == 0 { 0 } else { 7 }] = 2.0;
        answers.add_logits(window, &logits, &logits).unwrap();
    }
    answers.finish()
}

fn json_of(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn predictions_are_written_in_the_official_form() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new/predictions");
    predictions(Version::V2).write(&out).unwrap();
    assert_eq!(json_of(&out.join("predictions.json")), json!({"0": "", "1": "sat"}));
    let n_best = json_of(&out.join("nbest_predictions.json"));
    let keys: Vec<&String> = n_best["1"][0].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["text", "probability", "start_logit", "end_logit"]);
    assert_eq!((&n_best["1"][0]["text"], &n_best["1"][0]["start_logit"]), (&json!("sat"), &json!(2.0)));
    assert_eq!(json_of(&out.join("null_odds.json")), json!({"0": 4.0, "1": -4.0}));

    let read = read_predictions(&out.join("predictions.json")).unwrap();
    assert_eq!(read, [("0".to_owned(), String::new()), ("1".to_owned(), "sat".to_owned())]);
    let odds = read_no_answer_probabilities(&out.join("null_odds.json")).unwrap();
    assert_eq!(odds, [("0".to_owned(), 4.0), ("1".to_owned(), -4.0)]);

    let v1 = folder.path().join("v1");
    predictions(Version::V1).write(&v1).unwrap();
    assert!(v1.join("predictions.json").exists() && !v1.join("null_odds.json").exists());
}

#[test]
fn what_is_wrong_with_a_file_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.json");
    let message = |text: &str| {
        fs::write(&path, text).unwrap();
        read_predictions(&path).unwrap_err().to_string()
    };
    assert!(message("{\"a\": \"b\"").contains("p.json: not JSON: EOF while parsing an object at line 1 column 9"));
    assert!(message("{\"a\": \"b\", \"c\": 5}").contains("p.json: c: invalid type: integer `5`, expected a string"));
    assert!(message("{\"a\": \"b\", \"c\": \"\", \"a\": \"\"}").contains("p.json: id `a` is there twice"));
    assert!(message("[\"a\"]").contains("invalid type: sequence, expected an object"));
    fs::write(&path, "{\"a\": \"0.5\"}").unwrap();
    let error = read_no_answer_probabilities(&path).unwrap_err().to_string();
    assert!(error.contains("p.json: a: invalid type: string \"0.5\", expected a number"), "{error}");
    assert!(read_predictions(&folder.path().join("q.json")).unwrap_err().to_string().contains("cannot read the file"));
}
