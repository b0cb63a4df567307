//! Steps of answering questions.

use crate::support::{JOINT, close, interpreter, number, set_weights, sgd, small, squad_options, still};
use bessemer_models::electra::{SpanHead, squad};

/// `x - ln(sum(exp(x)))` of an element of a row.
fn log_probability(row: &[f64], place: usize) -> f64 {
    row[place] - row.iter().map(|x| x.exp()).sum::<f64>().ln()
}

#[test]
fn the_beam_agrees_with_training() {
    let step = squad::train(&still(small()), 2, 6, &squad_options(JOINT), &sgd()).expect("legal");
    let mut trained = interpreter(&step);
    let model = squad::predict(&small(), 2, 6, &squad_options(JOINT)).expect("legal");
    let mut predicted = interpreter(&model);
    predicted.run();
    let data = |name: &str| predicted.output(name).data.clone();
    let (starts, ends) = (data("start_indices"), data("end_indices"));
    let (start_values, end_values) = (data("start_log_probs"), data("end_log_probs"));
    assert_eq!((starts.len(), ends.len(), data("impossible_logits").len()), (6, 18, 2));
    // The loss of a start and an end alone is what the beam says of them.
    for (item, k, j) in [(0, 0, 0), (0, 2, 1), (1, 1, 2), (1, 0, 0)] {
        let (start, end) = (starts[item * 3 + k], ends[(item * 3 + k) * 3 + j]);
        let [mut first, mut last] = [[9.0; 2]; 2];
        (first[item], last[item]) = (start, end);
        trained.set("start_positions", &first);
        trained.set("end_positions", &last);
        set_weights(&mut trained, &step);
        trained.run();
        close(number(&trained, "start_loss"), -start_values[item * 3 + k]);
        close(number(&trained, "end_loss"), -end_values[(item * 3 + k) * 3 + j]);
    }
    for row in starts.chunks(3).chain(ends.chunks(3)) {
        assert!(row.iter().all(|&place| [0.0, 2.0, 3.0, 4.0].contains(&place)), "{row:?} has excluded tokens");
        assert!(row[0] != row[1] && row[1] != row[2] && row[0] != row[2]);
    }
    for row in start_values.chunks(3).chain(end_values.chunks(3)) {
        assert!(row.is_sorted_by(|a, b| a >= b));
    }
}

#[test]
fn the_plain_head_has_losses_of_its_logits() {
    let step = squad::train(&still(small()), 2, 6, &squad_options(SpanHead::Plain), &sgd()).expect("legal");
    let mut trained = interpreter(&step);
    trained.run();
    let model = squad::predict(&small(), 2, 6, &squad_options(SpanHead::Plain)).expect("legal");
    let mut predicted = interpreter(&model);
    predicted.run();
    let loss = |name: &str, item: usize, place: usize| -> f64 {
        -log_probability(&predicted.output(name).data[item * 6..][..6], place)
    };
    // The second start is beyond the sequence and does not count.
    close(number(&trained, "start_loss"), loss("start_logits", 0, 2));
    close(number(&trained, "end_loss"), (loss("end_logits", 0, 4) + loss("end_logits", 1, 3)) / 2.0);
    close(number(&trained, "loss"), (number(&trained, "start_loss") + number(&trained, "end_loss")) / 2.0);
    assert!(step.graph.find_input("p_mask").is_none() && model.graph.find_input("is_impossible").is_none());
}
