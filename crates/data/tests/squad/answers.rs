use bessemer_data::squad::{AnswerOptions, Answers, Beam, Features, Prediction, SquadSet, Version, top_k};

use serde_json::json;

use crate::world::{build, set, small, words};

/// `[CLS] who ? [SEP] the cat ##s ( sat ) , the cat [SEP]`
const TEXT: &str = "The Cats\n(sat), THE  cat";

struct World {
    set: SquadSet,
    features: Features,
}

impl World {
    fn new(context: &str) -> Self {
        let set = SquadSet::ask(context, &["who?"]);
        let features = build(&set, small(false));
        Self { set, features }
    }

    /// The answer to the question by independent heads, from the higher logits of each window; others are -9.
    fn answer(&self, windows: &[[&[(usize, f32)]; 2]], options: AnswerOptions) -> Prediction {
        let tokenizer = words();
        let mut answers = Answers::new(&self.set, &self.features, &tokenizer, options);
        let logits = |high: &[(usize, f32)]| {
            let mut logits = vec![-9.0; 16];
            high.iter().for_each(|&(position, logit)| logits[position] = logit);
            logits
        };
        for (window, [start, end]) in windows.iter().enumerate() {
            answers.add_logits(window, &logits(start), &logits(end)).unwrap();
        }
        answers.finish().questions.remove(0)
    }

    fn beam(&self, beams: &[Beam<'_>], options: AnswerOptions) -> Prediction {
        let tokenizer = words();
        let mut answers = Answers::new(&self.set, &self.features, &tokenizer, options);
        for (window, beam) in beams.iter().enumerate() {
            answers.add_beam(window, *beam).unwrap();
        }
        answers.finish().questions.remove(0)
    }
}

fn v1() -> AnswerOptions {
    AnswerOptions::new(Version::V1)
}

fn v2(threshold: f64) -> AnswerOptions {
    AnswerOptions { null_threshold: Some(threshold), ..AnswerOptions::new(Version::V2) }
}

fn texts(prediction: &Prediction) -> Vec<&str> {
    prediction.n_best.iter().map(|candidate| candidate.text.as_str()).collect()
}

#[test]
fn texts_are_as_they_were_written() {
    let world = World::new(TEXT);
    for (start, end, expected) in [
        (4, 4, "The"),
        (5, 6, "Cats"),
        (8, 8, "sat"),
        (7, 9, "(sat)"),
        (6, 8, "s (sat"),
        (4, 12, "The Cats (sat), THE cat"),
        (5, 5, "Cat"),
    ] {
        let prediction = world.answer(&[[&[(start, 5.0)], &[(end, 5.0)]]], v1());
        assert_eq!(prediction.text, expected, "{start}..={end}");
        assert_eq!((prediction.id.as_str(), prediction.null_score), ("0", None));
    }
}

#[test]
fn windows_may_come_in_any_order() {
    let question = |id: &str| json!([{"id": id, "question": "who?", "answers": [{"text": "a", "answer_start": 0}]}]);
    let long = "a b c d e f g h i j k l m n o p q";
    let set = set(json!([{"context": "the cat sat a", "qas": question("0")}, {"context": long, "qas": question("1")}]));
    let features = build(&set, small(false));
    assert_eq!(features.len(), 4);
    let tokenizer = words();
    for order in [[0, 1, 2, 3], [3, 0, 2, 1], [1, 3, 0, 2]] {
        let mut answers = Answers::new(&set, &features, &tokenizer, v1());
        for window in order {
            let mut logits = vec![-9.0; 16];
            logits[5] = window as f32;
            answers.add_logits(window, &logits, &logits).unwrap();
        }
        let found = answers.finish().questions;
        assert_eq!([found[0].text.as_str(), found[1].text.as_str()], ["cat", "b"], "{order:?}");
    }
}

#[test]
fn candidates_are_sorted_and_differ() {
    let world = World::new(TEXT);
    let start = [(11, 4.0), (4, 3.0), (8, 3.0), (5, 1.0), (1, 9.0)];
    let end = [(11, 3.0), (4, 3.5), (8, 2.0), (6, 1.0), (13, 9.0)];
    let prediction = world.answer(&[[&start, &end]], AnswerOptions { n_best: 5, ..v1() });
    // `THE` has 7, `The` has 6.5; question and [SEP] are no answers however high they are.
    let expected = ["THE", "The", "The Cats (sat), THE", "sat), THE", "The Cats (sat"];
    assert_eq!(texts(&prediction), expected);
    assert_eq!((prediction.n_best[0].start_logit, prediction.n_best[0].end_logit), (4.0, 3.0));
    let sum: f64 = [7.0, 6.5, 6.0, 6.0, 5.0].iter().map(|score: &f64| (score - 7.0).exp()).sum();
    assert!((prediction.n_best[4].probability - (-2.0_f64).exp() / sum).abs() < 1e-12);
    assert_eq!(texts(&world.answer(&[[&start, &end]], AnswerOptions { n_best: 2, ..v1() })), Vec::from([""]));

    let short = world.answer(&[[&start, &end]], AnswerOptions { n_best: 5, max_answer_length: 4, ..v1() });
    assert_eq!(texts(&short), ["THE", "The", "sat), THE", "sat", "The Cats"]);
    let twice = World::new("cat cat");
    let equal = twice.answer(&[[&[(4, 1.0), (5, 2.0)], &[(4, 1.0), (5, 1.0)]]], AnswerOptions { n_best: 2, ..v1() });
    assert_eq!(texts(&equal), ["cat", "cat cat"]);
    assert_eq!(equal.n_best[0].start_logit, 2.0);
}

#[test]
fn the_window_that_shows_most_around_a_start_decides() {
    let world = World::new("a b c d e f g h i j k l m n o p q");
    assert_eq!(world.features.len(), 3);
    let (first, second) = (world.features.window(0), world.features.window(1));
    // Token 6, `g`, has four others on its right in the first window, and one on its left in the second.
    assert!(first.is_max_context(4 + 6) && !second.is_max_context(4 + 1));
    let prediction = world.answer(&[[&[(10, 1.0)], &[(10, 1.0)]], [&[(5, 8.0)], &[(5, 8.0), (6, 8.0)]]], v1());
    assert_eq!(prediction.text, "g");
    assert_eq!(prediction.n_best[0].start_logit, 1.0);
    let windows: [[&[(usize, f32)]; 2]; 3] =
        [[&[(10, 1.0)], &[(10, 1.0)]], [&[(9, 2.0)], &[(9, 0.5)]], [&[(8, 0.0)], &[(8, 3.0)]]];
    let prediction = world.answer(&windows, v1());
    assert_eq!(&texts(&prediction)[..3], ["o", "k", "g"]);
}

#[test]
fn no_answer_is_given_above_the_threshold() {
    let world = World::new(TEXT);
    let windows: [[&[(usize, f32)]; 2]; 1] = [[&[(0, 2.0), (8, 1.0)], &[(0, 1.5), (8, 2.0)]]];
    let given = world.answer(&windows, v2(0.5));
    assert_eq!((given.text.as_str(), given.null_score), ("sat", Some(0.5)));
    let withheld = world.answer(&windows, v2(0.25));
    assert_eq!((withheld.text.as_str(), withheld.null_score), ("", Some(0.5)));
    assert_eq!(texts(&withheld)[..2], ["", "sat"]);
    assert_eq!((withheld.n_best[0].start_logit, withheld.n_best[0].end_logit), (2.0, 1.5));
    assert!(!texts(&world.answer(&windows, v1())).contains(&""));
}

#[test]
fn the_window_surest_of_an_answer_speaks_against_none() {
    let world = World::new("a b c d e f g h i j k l m n o p q");
    let windows: [[&[(usize, f32)]; 2]; 3] =
        [[&[(0, 3.0)], &[(0, 3.0)]], [&[(0, 1.0), (9, 2.0)], &[(0, 0.0), (9, 1.0)]], [&[(0, 4.0)], &[(0, 4.0)]]];
    let prediction = world.answer(&windows, v2(0.0));
    assert_eq!((prediction.text.as_str(), prediction.null_score), ("k", Some(1.0 - 3.0)));
}

#[test]
fn joint_heads_have_a_logit_of_no_answer() {
    let world = World::new(TEXT);
    let beam = Beam {
        starts: &[8, 4, 0],
        start_scores: &[-0.5, -1.0, -3.0],
        ends: &[8, 4, 6, 4, 12, 12],
        end_scores: &[-0.5, -0.1, -0.1, -0.7, -0.1, -0.2],
        no_answer: Some(-5.0),
    };
    let prediction = world.beam(&[beam], v1());
    assert_eq!((texts(&prediction), prediction.null_score), (vec!["sat", "The Cats", "The"], None));
    let given = world.beam(&[beam], v2(-5.0));
    assert_eq!((given.text.as_str(), given.null_score), ("sat", Some(-5.0)));
    let withheld = world.beam(&[beam], v2(-5.6));
    assert_eq!((withheld.text.as_str(), withheld.null_score), ("", Some(-5.0)));
    // No answer stands with the scores of the first pair.
    assert_eq!(texts(&withheld), ["sat", "", "The Cats", "The"]);
    assert_eq!((withheld.n_best[1].start_logit, withheld.n_best[1].end_logit), (-0.5, -0.5));

    let tokenizer = words();
    let mut answers = Answers::new(&world.set, &world.features, &tokenizer, v2(0.0));
    let error = answers.add_beam(0, Beam { no_answer: None, ..beam }).unwrap_err().to_string();
    assert!(error.starts_with("the logit of no answer is missing in window 0"), "{error}");
}

#[test]
fn where_nothing_can_be_an_answer_there_is_none() {
    let empty = World::new("");
    for options in [v1(), v2(100.0)] {
        let prediction = empty.answer(&[[&[(0, 1.0)], &[(0, 2.0)]]], options);
        assert_eq!((prediction.text.as_str(), texts(&prediction)), ("", vec![""]));
        assert_eq!(prediction.n_best[0].probability, 1.0);
    }
    let masked = World::new(TEXT).answer(&[[&[(5, f32::NEG_INFINITY)], &[]]], AnswerOptions { n_best: 16, ..v1() });
    assert!(masked.n_best.iter().all(|candidate| candidate.probability.is_finite()));
}

#[test]
fn questions_without_windows_are_not_answered() {
    let set = SquadSet::ask(TEXT, &["who?", "the?"]);
    let features = build(&set, small(false));
    let tokenizer = words();
    let mut answers = Answers::new(&set, &features, &tokenizer, v1());
    let mut logits = vec![0.0; 16];
    logits[8] = 2.0;
    assert_eq!(top_k(&logits, 1), [8]);
    answers.add_logits(1, &logits, &logits).unwrap();
    assert_eq!(answers.finish().texts().collect::<Vec<_>>(), [("1", "sat")]);
}
