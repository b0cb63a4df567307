/// What a metric refuses to accumulate.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MetricError {
    #[error("top-k accuracy: {name} is {value}, expected {expected}")]
    Option { name: &'static str, value: String, expected: &'static str },

    #[error(
        "top-k accuracy: {logits} logits for {labels} labels of {classes} classes, expected {} logits",
        labels * classes
    )]
    Shape { logits: usize, labels: usize, classes: usize },

    #[error("top-k accuracy: label {label} of sample {sample} is outside 0..{classes}")]
    Label { sample: usize, label: i32, classes: usize },

    #[error("top-k accuracy: the logit of sample {sample}, class {class} is not a number")]
    NanLogit { sample: usize, class: usize },

    #[error("mean loss: the loss of a batch of {samples} samples is {loss}, expected a finite number")]
    NonFiniteLoss { loss: f64, samples: usize },

    #[error("SQuAD: there is no question")]
    NoQuestions,

    #[error("SQuAD: question `{id}` has no right answer, which version 2.0 alone allows")]
    NoAnswers { id: String },

    #[error("SQuAD: question `{id}` has a prediction and no probability of no answer")]
    NoProbability { id: String },

    #[error("SQuAD: the probability of no answer of question `{id}` is not a number")]
    NanProbability { id: String },
}
