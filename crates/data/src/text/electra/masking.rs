//! Choosing tokens to be predicted (`pretrain_helpers.py` of Google's ELECTRA, `mask`).

use crate::Philox;
use crate::text::Specials;

use super::Prediction;

/// Share of chosen tokens that become `[MASK]`; the others stay.
const REPLACED: f64 = 0.85;

/// How tokens are chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Masking {
    /// Share of all tokens of a sequence to predict.
    pub probability: f64,
    /// Most tokens to predict.
    pub most: usize,
    /// Whether a position is chosen once at most.
    pub distinct: bool,
}

impl Masking {
    /// Chooses tokens of a sequence, in random order.
    ///
    /// One at least is chosen where there is any to choose from: the first position and special tokens are never chosen.
    pub(crate) fn draw(&self, tokens: &[u32], specials: Option<Specials>, rng: &mut Philox) -> Vec<Prediction> {
        let is_word = |id: u32| specials.is_none_or(|specials| !specials.is_structure(id));
        let words: Vec<usize> = (1..tokens.len()).filter(|&position| is_word(tokens[position])).collect();
        if words.is_empty() {
            return Vec::new();
        }
        let wanted = (tokens.len() as f64 * self.probability).round_ties_even() as usize;
        let positions = self.positions(words, wanted.min(self.most).max(1), rng);
        let prediction = |position: usize| Prediction {
            position: position as u32,
            id: tokens[position],
            is_replaced: rng.chance(REPLACED),
        };
        positions.into_iter().map(prediction).collect()
    }

    fn positions(&self, mut words: Vec<usize>, wanted: usize, rng: &mut Philox) -> Vec<usize> {
        if self.distinct {
            rng.shuffle(&mut words);
            words.truncate(wanted);
            return words;
        }
        (0..wanted).map(|_| words[rng.below(words.len() as u32) as usize]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Purpose;
    use std::collections::BTreeSet;

    const SPECIALS: Specials = Specials { pad: 0, unknown: 1, cls: 2, sep: 3, mask: 4 };
    const MASKING: Masking = Masking { probability: 0.15, most: 19, distinct: false };

    fn draw(masking: Masking, tokens: &[u32], seed: u64) -> Vec<Prediction> {
        masking.draw(tokens, Some(SPECIALS), &mut Purpose::Predictions.stream(seed, 0, 0))
    }

    /// `[CLS]`, words and `[SEP]`.
    fn sequence(words: usize) -> Vec<u32> {
        let words = (0..words as u32).map(|number| 5 + number);
        [SPECIALS.cls].into_iter().chain(words).chain([SPECIALS.sep]).collect()
    }

    fn positions(predictions: &[Prediction]) -> Vec<u32> {
        predictions.iter().map(|prediction| prediction.position).collect()
    }

    #[test]
    fn numbers_are_shares_of_all_tokens() {
        for (words, expected) in [(1, 1), (4, 1), (8, 2), (28, 4), (98, 15), (118, 18), (126, 19)] {
            assert_eq!(draw(MASKING, &sequence(words), 1).len(), expected, "{words}");
        }
        assert_eq!(draw(Masking { most: 79, ..MASKING }, &sequence(510), 1).len(), 77);
        assert_eq!(draw(Masking { most: 10, ..MASKING }, &sequence(126), 1).len(), 10);
        let few = Masking { probability: 0.9, distinct: true, ..MASKING };
        assert_eq!(draw(few, &sequence(3), 1).len(), 3, "no more than there are");
    }

    #[test]
    fn words_are_drawn_evenly_and_structure_never() {
        let tokens = [2, 4, 10, 1, 3, 12, 0, 13, 3];
        let mut counts = [0; 9];
        for seed in 0..20_000 {
            for prediction in draw(MASKING, &tokens, seed) {
                assert_eq!(prediction.id, tokens[prediction.position as usize]);
                counts[prediction.position as usize] += 1;
            }
        }
        assert_eq!([0, 1, 4, 6, 8].map(|position: usize| counts[position]), [0; 5]);
        assert!([2, 3, 5, 7].iter().all(|&position: &usize| (4700..5300).contains(&counts[position])), "{counts:?}");
        assert!(draw(MASKING, &[2, 3, 3], 1).is_empty() && draw(MASKING, &[], 1).is_empty());
    }

    /// Nothing is known of the first token here but its place.
    #[test]
    fn the_first_position_is_never_chosen() {
        let all = (0..2000)
            .flat_map(|seed| MASKING.draw(&[7, 8], None, &mut Purpose::Predictions.stream(seed, 0, 0)).into_iter());
        assert!(all.into_iter().all(|prediction| prediction.position == 1));
    }

    #[test]
    fn positions_come_twice_unless_they_are_distinct() {
        let twice = |masking: Masking| {
            let repeats = |seed: u64| {
                let found = positions(&draw(masking, &sequence(126), seed));
                found.len() - found.iter().collect::<BTreeSet<_>>().len()
            };
            (0..2000).map(repeats).sum::<usize>() as f64 / 2000.0
        };
        // 19 draws of 126 leave 126 * (1 - 1 / 126)^19 positions without any: 1.298 draws repeat a position.
        let found = twice(MASKING);
        assert!((1.2..1.4).contains(&found), "{found}");
        assert_eq!(twice(Masking { distinct: true, ..MASKING }), 0.0);
    }

    #[test]
    fn seventeen_in_twenty_are_replaced() {
        for distinct in [false, true] {
            let masking = Masking { distinct, ..MASKING };
            let all: Vec<Prediction> = (0..2000).flat_map(|seed| draw(masking, &sequence(126), seed)).collect();
            let replaced = all.iter().filter(|prediction| prediction.is_replaced).count() as f64 / all.len() as f64;
            assert!((0.84..0.86).contains(&replaced), "{replaced}");
        }
    }
}
