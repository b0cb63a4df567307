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
    /// Returns positions, ascending, with what was there. At least one token is chosen where there is any to choose
    /// from and, with whole words, one short enough.
    pub(super) fn apply(&self, ids: &mut [u32], vocabulary: &Vocabulary, rng: &mut Philox) -> Vec<(u32, u32)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Purpose;
    use std::fs;

    /// `w0` to `w19` are 5 to 24, and `##x0` to `##x19` are 25 to 44.
    fn vocabulary() -> Vocabulary {
        let words = (0..20).map(|n| format!("w{n}")).chain((0..20).map(|n| format!("##x{n}")));
        let specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(str::to_owned);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vocab.txt");
        fs::write(&path, specials.into_iter().chain(words).collect::<Vec<_>>().join("\n")).unwrap();
        Vocabulary::open(&path).unwrap()
    }

    fn apply(masking: Masking, ids: &[u32], seed: u64) -> (Vec<u32>, Vec<(u32, u32)>) {
        let mut hidden = ids.to_vec();
        let chosen = masking.apply(&mut hidden, &vocabulary(), &mut Purpose::Masks.stream(seed, 0, 0));
        (hidden, chosen)
    }

    const MASKING: Masking = Masking { probability: 0.15, most: 20, whole_words: false };

    #[test]
    fn counts_are_rounded_and_bounded() {
        let count = |masking, tokens: usize| apply(masking, &vec![7; tokens], 0).1.len();
        assert_eq!(count(MASKING, 20), 3);
        assert_eq!((count(MASKING, 30), count(MASKING, 10)), (4, 2), "halves go to the even number");
        assert_eq!(count(MASKING, 3), 1, "at least one");
        assert_eq!(count(MASKING, 500), 20, "at most so many");
        assert_eq!(apply(MASKING, &[2, 3, 0, 4, 3], 0).1, [], "nothing to choose");
    }

    #[test]
    fn originals_are_kept_and_the_rest_is_untouched() {
        let ids: Vec<u32> = [2].into_iter().chain(5..45).chain([3]).collect();
        let mut positions = [0; 42];
        for seed in 0..300 {
            let (hidden, chosen) = apply(MASKING, &ids, seed);
            assert!(chosen.is_sorted() && chosen.len() == 6);
            for &(position, original) in &chosen {
                assert_eq!(original, ids[position as usize]);
                positions[position as usize] += 1;
            }
            let same = |at: usize| hidden[at] == ids[at] || chosen.iter().any(|&(position, _)| position as usize == at);
            assert!((0..ids.len()).all(same));
        }
        assert_eq!((positions[0], positions[41]), (0, 0));
        assert!(positions[1..41].iter().all(|&times| (20..80).contains(&times)), "{positions:?}");
    }

    #[test]
    fn words_are_chosen_whole_or_not_at_all() {
        let whole = Masking { whole_words: true, probability: 0.3, ..MASKING };
        // Words of one, three and two tokens, and a piece that continues a word beyond [SEP].
        let ids = [2, 5, 6, 25, 26, 7, 27, 3, 28, 8, 3];
        let words = [vec![1], vec![2, 3, 4], vec![5, 6], vec![8], vec![9]];
        let mut seen = [false; 5];
        for seed in 0..300 {
            let chosen: Vec<usize> = apply(whole, &ids, seed).1.iter().map(|&(at, _)| at as usize).collect();
            assert!(chosen.len() <= 3);
            for (word, seen) in words.iter().zip(&mut seen) {
                let inside = word.iter().filter(|at| chosen.contains(at)).count();
                assert!(inside == 0 || inside == word.len(), "{chosen:?}");
                *seen |= inside > 0;
            }
        }
        assert_eq!(seen, [true; 5]);
    }
}
