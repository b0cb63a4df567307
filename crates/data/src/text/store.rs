use std::ops::Range;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::shard::Shard;
use crate::{DataError, parallel};

/// The documents of several shards, as one sequence.
#[derive(Debug)]
pub(crate) struct TokenStore {
    shards: Vec<Shard>,
    /// Number of the first document of each shard.
    first_documents: Vec<u32>,
    documents: u32,
}

/// A run of tokens of a document's shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub document: u32,
    pub tokens: Range<u32>,
}

/// Where the sentences of a document lie in its shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Document<'a> {
    number: u32,
    start: u32,
    ends: &'a [u32],
}

impl Document<'_> {
    /// Number of sentences, at least one.
    pub(crate) fn sentences(&self) -> usize {
        self.ends.len()
    }

    /// The tokens of a run of sentences.
    pub(crate) fn span(&self, sentences: Range<usize>) -> Span {
        let bound = |sentence: usize| if sentence == 0 { self.start } else { self.ends[sentence - 1] };
        Span { document: self.number, tokens: bound(sentences.start)..bound(sentences.end) }
    }

    /// The end of the shortest run of sentences from `start` on that has `tokens` tokens, or else the last sentence's.
    pub(crate) fn reach(&self, start: usize, tokens: u32) -> usize {
        let enough = |&end: &usize| self.span(start..end).tokens.len() >= tokens as usize;
        (start + 1..self.sentences()).find(enough).unwrap_or(self.sentences())
    }
}

impl TokenStore {
    pub(crate) fn new(shards: Vec<Shard>) -> Self {
        let mut documents = 0;
        let first_documents = shards.iter().map(|shard| {
            let first = documents;
            documents += shard.document_ends().len() as u32;
            first
        });
        let first_documents = first_documents.collect();
        Self { shards, first_documents, documents }
    }

    pub(crate) fn open(files: &[impl AsRef<Path>], vocabulary: [u8; 32]) -> Result<Self, DataError> {
        let shards: Result<_, _> = files.iter().map(|file| Shard::open(file.as_ref(), vocabulary)).collect();
        Ok(Self::new(shards?))
    }

    /// Number of documents.
    pub(crate) fn documents(&self) -> u32 {
        self.documents
    }

    /// Sentences and tokens of all documents.
    pub(crate) fn sentences_and_tokens(&self) -> (u64, u64) {
        let headers = || self.shards.iter().map(Shard::header);
        (headers().map(|header| header.sentences).sum(), headers().map(|header| header.tokens).sum())
    }

    fn shard_of(&self, document: u32) -> usize {
        self.first_documents.partition_point(|&first| first <= document) - 1
    }

    pub(crate) fn document(&self, number: u32) -> Document<'_> {
        let index = self.shard_of(number);
        let (shard, place) = (&self.shards[index], (number - self.first_documents[index]) as usize);
        let bounds = |ends: &[u32], at: usize| if at == 0 { 0 } else { ends[at - 1] };
        let first = bounds(shard.document_ends(), place) as usize;
        let ends = &shard.sentence_ends()[first..shard.document_ends()[place] as usize];
        Document { number, start: bounds(shard.sentence_ends(), first), ends }
    }

    /// Appends the ids of a span.
    pub(crate) fn tokens(&self, span: &Span, out: &mut Vec<u32>) -> Result<(), DataError> {
        self.shards[self.shard_of(span.document)].tokens(span.tokens.clone(), out)
    }

    /// SHA-256 of the shards' headers, which hold the checksums of all they contain.
    pub(crate) fn hash(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        for header in self.shards.iter().map(Shard::header) {
            for number in [header.tokens, header.sentences, header.documents] {
                hasher.update(number.to_le_bytes());
            }
            header.checksums.iter().for_each(|checksum| hasher.update(checksum.to_le_bytes()));
            hasher.update(header.vocabulary);
        }
        hasher.finalize().into()
    }

    /// How often each id of a vocabulary occurs.
    ///
    /// Errors: damaged tokens.
    pub(crate) fn token_counts(&self, vocabulary_size: usize, threads: usize) -> Result<Vec<u64>, DataError> {
        let counts = parallel::try_map(self.shards.len(), threads, |index| {
            let mut counts = vec![0_u64; vocabulary_size];
            let mut count = |ids: &[u32]| ids.iter().for_each(|&id| counts[id as usize] += 1);
            self.shards[index].scan(vocabulary_size, &mut count)?;
            Ok(counts)
        })?;
        Ok((0..vocabulary_size).map(|id| counts.iter().map(|counts| counts[id]).sum()).collect())
    }
}
