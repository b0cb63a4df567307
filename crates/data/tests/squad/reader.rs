use bessemer_data::squad::{Answer, SquadSet, Version};
use serde_json::{Value, json};

use crate::world::{paragraph, read, set};

fn question(id: &str, answers: Value) -> Value {
    json!({"id": id, "question": "Who?", "answers": answers})
}

/// What is said of one article of paragraphs.
fn refused(paragraphs: Value) -> String {
    let text = json!({"version": "1.1", "data": [{"title": "Cats", "paragraphs": paragraphs}]}).to_string();
    read(text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn both_versions_are_read() {
    let v1 = set(json!([
        {"context": "É the cat", "qas": [question("x", json!([{"text": "the", "answer_start": 2}]))]},
        {"context": "", "qas": []},
        {"context": "dog", "qas": [question("y", json!([{"text": "dog", "answer_start": 0}]))]},
    ]));
    assert_eq!((v1.version(), v1.paragraphs().len(), v1.questions().len()), (Version::V1, 3, 2));
    assert_eq!((v1.paragraphs()[0].title.as_str(), v1.paragraphs()[2].questions.clone()), ("Cats", 1..2));
    let [x, y] = v1.questions() else { panic!("two questions") };
    assert_eq!((x.id.as_str(), x.text.as_str(), x.is_impossible), ("x", "Who?", false));
    assert_eq!(x.answers, [Answer { text: "the".into(), start: 2 }]);
    assert_eq!((v1.context(x), v1.context(y)), ("É the cat", "dog"));
    assert!(v1.misplaced().is_empty());

    let v2 = set(json!([{"context": "cat", "qas": [
        {"id": "x", "question": "Who?", "answers": [], "is_impossible": true, "plausible_answers": [{"text": "c"}]},
        question("y", json!([{"text": "cat", "answer_start": 0}])),
    ]}]));
    assert_eq!(v2.version(), Version::V2);
    assert_eq!(v2.questions().iter().map(|question| question.is_impossible).collect::<Vec<_>>(), [true, false]);
    assert_ne!(v1.hash(), v2.hash());
}

#[test]
fn answers_elsewhere_are_listed() {
    let set = paragraph("É the cat", &[("a", "the", 2), ("b", "the", 3), ("c", "cat", 99), ("d", "", 9)]);
    let misplaced: Vec<(&str, &str, usize)> =
        set.misplaced().iter().map(|one| (one.place.as_str(), one.text.as_str(), one.start)).collect();
    let place = |number: usize| format!("data[0].paragraphs[0].qas[{number}].answers[0]");
    assert_eq!(misplaced, [(place(1).as_str(), "the", 3), (place(2).as_str(), "cat", 99)]);
}

#[test]
fn what_is_wrong_is_told_with_its_path() {
    let good = || question("x", json!([{"text": "c", "answer_start": 0}]));
    let without = |field: &str| {
        let mut question = good();
        question.as_object_mut().unwrap().remove(field);
        json!([{"context": "c", "qas": [good(), question]}])
    };
    for field in ["id", "question", "answers"] {
        let message = refused(without(field));
        assert!(
            message.contains(&format!("data[0].paragraphs[0].qas[1].{field} is missing; expected SQ")),
            "{message}"
        );
    }
    let qas = |question: Value| json!([{"context": "c", "qas": [question]}]);
    let place = "data[0].paragraphs[0].qas[0]";
    for (paragraphs, expected) in [
        (json!([{"qas": []}]), "data[0].paragraphs[0].context is missing".to_owned()),
        (json!([{"context": "c"}]), "data[0].paragraphs[0].qas is missing".to_owned()),
        (Value::Null, "data[0].paragraphs is missing".to_owned()),
        (qas(question("x", json!([{"answer_start": 0}]))), format!("{place}.answers[0].text is missing")),
        (qas(question("x", json!([{"text": "c"}]))), format!("{place}.answers[0].answer_start is missing")),
        (qas(question("x", json!([{"text": "c", "answer_start": -1}]))), format!("{place}.answers[0].answer_start: ")),
        (qas(question("x", json!([{"text": "c", "answer_start": "0"}]))), "invalid type: string".to_owned()),
        (qas(json!({"id": 5})), format!("{place}.id: invalid type: integer `5`, expected a string")),
        (qas(question("x", json!([]))), format!("{place}.answers is empty, id `x`")),
        (
            json!([{"context": "c", "qas": [good()]}, {"context": "d", "qas": [good()]}]),
            format!("data[0].paragraphs[1].qas[0].id is `x`, as {place}.id is"),
        ),
        (json!([{"context": "c", "qas": []}]), "there is no question in it".to_owned()),
    ] {
        let message = refused(paragraphs);
        assert!(message.contains(&expected), "{message}");
    }
}

#[test]
fn impossible_questions_have_no_answers() {
    let with = |impossible: bool, answers: Value| {
        let mut question = question("x", answers);
        question["is_impossible"] = impossible.into();
        refused(json!([{"context": "c", "qas": [question]}]))
    };
    assert!(
        with(true, json!([{"text": "c", "answer_start": 0}])).contains("qas[0] is impossible and has answers, id `x`")
    );
    assert!(with(false, json!([])).contains("qas[0].answers is empty and is_impossible is not true, id `x`"));
}

#[test]
fn what_is_no_such_file_is_told() {
    let message = |text: &[u8]| read(text).unwrap_err().to_string();
    assert!(message(b"").contains("squad.json: not JSON: EOF"));
    assert!(message(b"{\"data\": [}").contains("not JSON: expected value at line 1 column 11"));
    assert!(message(b"{\"data\": []} x").contains("not JSON: trailing characters"));
    assert!(message(b"{\"\xff\": 0}").contains("not JSON: invalid unicode code point at line 1"));
    assert!(message(b"{}").contains("data is missing"));
    assert!(message(b"5").contains("squad.json: invalid type: integer `5`"));
    assert!(message(b"{\"data\": 5}").contains("data: invalid type: integer `5`"));
    assert!(SquadSet::open("no/such.json".as_ref()).unwrap_err().to_string().starts_with("no/such.json: cannot read"));
}

#[test]
fn questions_can_be_asked_of_a_text() {
    let set = SquadSet::ask("the cat", &["who?", "when?"]);
    assert_eq!(set.questions().iter().map(|question| question.id.as_str()).collect::<Vec<_>>(), ["0", "1"]);
    assert_eq!(set.context(&set.questions()[1]), "the cat");
    assert_ne!(set.hash(), SquadSet::ask("the cat", &["who?when?"]).hash());
}
