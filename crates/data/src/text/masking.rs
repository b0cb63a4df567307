//! Choosing tokens to be predicted (`create_pretraining_data.py` of Google's BERT, `create_masked_lm_predictions`).

use std::ops::Range;

use super::Vocabulary;
use crate::Philox;

/// How tokens are chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Masking {
    /// Share of all tokens of a sequence to predict.
    pub probability: f64,
    /// Most tokens to predict.
    pub most: usize,
    /// Whether all pieces of a word are chosen together.
    pub whole_words: bool,
}

impl Masking {
    /// Chooses tokens of a sequence and hides them: 80 % become `[MASK]`, 10 % any token of the vocabulary, 10 % stay.
    ///
    /// Returns positions, ascending, with what was there. At least one token is chosen where there is any to choose from
    /// and, with whole words, one short enough.
    pub fn apply(&self, ids: &mut [u32], vocabulary: &Vocabulary, rng: &mut Philox) -> Vec<(u32, u32)> {
        let mut words = self.candidates(ids, vocabulary);
        rng.shuffle(&mut words);
        let wanted = (ids.len() as f64 * self.probability).round_ties_even() as usize;
        let wanted = wanted.max(1).min(self.most);
        let mut chosen = Vec::with_capacity(wanted);
        for word in words {
            if chosen.len() == wanted {
                break;
            }
            if chosen.len() + word.len() > wanted {
                continue;
            }
            for position in word {
                let original = ids[position];
                ids[position] = hidden(original, vocabulary, rng);
                chosen.push((position as u32, original));
            }
        }
        chosen.sort_unstable();
        chosen
    }

    /// Runs of positions that are chosen together.
    fn candidates(&self, ids: &[u32], vocabulary: &Vocabulary) -> Vec<Range<usize>> {
        let specials = vocabulary.specials();
        let mut words: Vec<Range<usize>> = Vec::with_capacity(ids.len());
        for (position, &id) in ids.iter().enumerate() {
            if specials.is_structure(id) {
                continue;
            }
            match words.last_mut() {
                Some(word) if self.whole_words && word.end == position && vocabulary.continues_word(id) => {
                    word.end += 1
                }
                _ => words.push(position..position + 1),
            }
        }
        words
    }
}

fn hidden(original: u32, vocabulary: &Vocabulary, rng: &mut Philox) -> u32 {
    if rng.chance(0.8) {
        vocabulary.specials().mask
    } else if rng.chance(0.5) {
        original
    } else {
        rng.below(vocabulary.len() as u32)
    }
}
