/// Why detections cannot be scored.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CocoError {
    #[error("COCO: there are no annotations")]
    NoObjects,

    #[error("COCO: {what} {index} has {name} {value}, expected less than {count}")]
    Index { what: &'static str, index: usize, name: &'static str, value: usize, count: usize },

    #[error("COCO: {what} {index} has the {name} {value}, expected a finite number")]
    NonFinite { what: &'static str, index: usize, name: &'static str, value: f64 },
}
