//! A corpus in which each word occurs once, so that each token has one possible origin.

use std::fs;
use std::path::PathBuf;

use bessemer_data::Split;
use bessemer_data::text::{
    Documents, Format, Instance, InstanceOptions, Preparation, PretrainingSet, SplitCounts, Vocabulary, prepare,
};
use tempfile::TempDir;

const SPECIALS: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
pub(crate) const DOCUMENTS: usize = 60;

/// Where a word stands: document, and number of the token within it.
pub(crate) type Origin = (usize, usize);

/// A folder with `text/a.txt`, `text/b.txt` and `vocab.txt`.
pub(crate) struct World {
    pub folder: TempDir,
    pub vocabulary: Vocabulary,
    /// Of each id, `None` for special tokens.
    pub origins: Vec<Option<Origin>>,
}

impl World {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut vocabulary: Vec<String> = SPECIALS.map(str::to_owned).to_vec();
        let mut origins = vec![None; SPECIALS.len()];
        let mut texts = [String::new(), String::new()];
        for document in 0..DOCUMENTS {
            let text = &mut texts[document % 2];
            let mut token = 0;
            for sentence in 0..1 + document * 7 % 20 {
                for word in 0..1 + (document * 5 + sentence * 11) % 17 {
                    // Every third word has two pieces.
                    let (stem, tail) = (letters(origins.len()), word % 3 == 1);
                    vocabulary.push(stem.clone());
                    origins.push(Some((document, token)));
                    token += 1;
                    *text += &stem;
                    if tail {
                        let piece = letters(origins.len());
                        vocabulary.push(format!("##{piece}"));
                        origins.push(Some((document, token)));
                        token += 1;
                        *text += &piece;
                    }
                    *text += " ";
                }
                *text += "\n";
            }
            *text += "\n";
        }
        fs::create_dir(folder.path().join("text")).unwrap();
        for (name, text) in ["a.txt", "b.txt"].iter().zip(texts) {
            fs::write(folder.path().join("text").join(name), text).unwrap();
        }
        let path = folder.path().join("vocab.txt");
        fs::write(&path, vocabulary.join("\n")).unwrap();
        Self { folder, vocabulary: Vocabulary::open(&path).unwrap(), origins }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A preparation of the text in three parts.
    pub(crate) fn preparation(&self, out: &str, format: Format) -> Preparation {
        Preparation {
            inputs: vec![self.path("text")],
            documents: Documents::BlankLines,
            vocabulary: self.path("vocab.txt"),
            out: self.path(out),
            format,
            instances: InstanceOptions { sequence_length: 64, max_predictions: 10, ..InstanceOptions::default() },
            dupe_factor: 3,
            parts: Some(3),
            heldout: 0.2,
            seed: 7,
            threads: 2,
        }
    }

    /// Prepares the text in the folder `out`.
    pub(crate) fn prepare(&self, out: &str, format: Format) -> Vec<(Split, SplitCounts)> {
        run(&self.preparation(out, format))
    }

    pub(crate) fn open(&self, out: &str, split: Split) -> PretrainingSet {
        PretrainingSet::open(&self.path(out), split, None, 1).unwrap()
    }

    /// Origins of the tokens of both segments, before masking.
    pub(crate) fn origins(&self, instance: &Instance) -> [Vec<Origin>; 2] {
        let mut segments = [vec![], vec![]];
        for (id, &segment) in instance.original_tokens().into_iter().zip(&instance.segments) {
            segments[usize::from(segment)].extend(self.origins[id as usize]);
        }
        segments
    }

    /// What must be true of every instance.
    #[track_caller]
    pub(crate) fn check(&self, instance: &Instance, options: &InstanceOptions) {
        let specials = self.vocabulary.specials();
        let tokens = instance.original_tokens();
        let length = tokens.len();
        assert!(length <= options.sequence_length && length >= 5);
        assert_eq!(instance.segments.len(), length);
        let first = instance.segments.iter().filter(|&&segment| segment == 0).count();
        assert!(instance.segments[..first].iter().all(|&segment| segment == 0), "segments come one after the other");
        let structure: Vec<usize> = (0..length).filter(|&at| specials.is_structure(tokens[at])).collect();
        assert_eq!(structure, [0, first - 1, length - 1]);
        assert_eq!([tokens[0], tokens[first - 1], tokens[length - 1]], [specials.cls, specials.sep, specials.sep]);

        assert!(instance.masked.is_sorted_by(|a, b| a.0 < b.0));
        assert!(instance.masked.iter().all(|&(at, _)| !structure.contains(&(at as usize))));
        let wanted = (length as f64 * options.masked_lm_probability).round_ties_even() as usize;
        let wanted = wanted.max(1).min(options.max_predictions).min(length - structure.len());
        assert!(instance.masked.len() <= wanted);
        assert!(options.whole_words || instance.masked.len() == wanted);

        let [a, b] = self.origins(instance);
        for segment in [&a, &b] {
            assert!(!segment.is_empty());
            let consecutive = segment.windows(2).all(|pair| pair[1] == (pair[0].0, pair[0].1 + 1));
            assert!(consecutive, "a segment is a run of one document: {segment:?}");
        }
        if instance.random_next {
            assert_ne!(a[0].0, b[0].0, "a random segment is of another document");
        } else {
            assert!(a[0].0 == b[0].0 && a.last() < b.first(), "the second segment follows: {a:?} {b:?}");
        }
    }
}

pub(crate) fn run(preparation: &Preparation) -> Vec<(Split, SplitCounts)> {
    prepare(preparation, &|_| (), &|| false).unwrap()
}

/// Every instance of an epoch.
pub(crate) fn instances(set: &PretrainingSet, epoch: u32) -> Vec<Instance> {
    (0..set.len()).map(|index| set.instance(epoch, index).unwrap()).collect()
}

/// A word of letters for a number. All have the same length, so that none begins another.
fn letters(number: usize) -> String {
    let digit = |place: u32| char::from(b'a' + (number / 26_usize.pow(place) % 26) as u8);
    (0..4).map(digit).collect()
}
