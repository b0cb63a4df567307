/// A sequence to pre-train ELECTRA on, without padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElectraInstance {
    /// `[CLS] first segment [SEP]` and, where there is a second one, `second segment [SEP]`; nothing is hidden.
    pub tokens: Vec<u32>,
    /// 0 for the first segment with its special tokens, 1 for the second.
    pub segments: Vec<u8>,
    /// What is to be predicted, in random order. Unless positions are distinct, some may come more than once.
    pub predictions: Vec<Prediction>,
}

/// A token to be predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prediction {
    /// Position in the sequence, from 0.
    pub position: u32,
    /// The token there.
    pub id: u32,
    /// Whether `[MASK]` takes its place. Where a position comes more than once, each has an answer of its own, and one
    /// is enough.
    pub is_replaced: bool,
}

impl ElectraInstance {
    /// The tokens as the generator sees them.
    pub fn masked_tokens(&self, mask: u32) -> Vec<u32> {
        let mut tokens = self.tokens.clone();
        for prediction in self.predictions.iter().filter(|prediction| prediction.is_replaced) {
            tokens[prediction.position as usize] = mask;
        }
        tokens
    }
}
