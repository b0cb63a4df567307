use super::Window;
use crate::DataError;

/// What a joint head says of a window: the `K` likeliest starts, and for each start the `E` likeliest ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Beam<'a> {
    /// `[K]`: positions, the likeliest first.
    pub starts: &'a [u32],
    /// `[K]`: logarithms of their probabilities.
    pub start_scores: &'a [f32],
    /// `[K, E]`: positions, for each start the likeliest first.
    pub ends: &'a [u32],
    /// `[K, E]`: logarithms of their probabilities.
    pub end_scores: &'a [f32],
    /// The logit of there being no answer, where there may be none.
    pub no_answer: Option<f32>,
}

/// A run of tokens of a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Span {
    pub start: usize,
    pub end: usize,
    pub start_logit: f32,
    pub end_logit: f32,
}

impl Span {
    pub(super) fn score(&self) -> f64 {
        f64::from(self.start_logit) + f64::from(self.end_logit)
    }
}

/// Positions of the `k` highest numbers, the highest first; of equal ones the first.
pub fn top_k(scores: &[f32], k: usize) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..scores.len()).collect();
    positions.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    positions.truncate(k);
    positions
}

/// What may be an answer of all pairs of the `n_best` starts and ends, the best first.
///
/// Errors: logits that are not numbers or fewer than tokens.
pub(super) fn of_logits(
    window: &Window,
    start: &[f32],
    end: &[f32],
    n_best: usize,
    longest: usize,
) -> Result<Vec<Span>, DataError> {
    check("start logits", window, start)?;
    check("end logits", window, end)?;
    if start.len() != end.len() || start.len() < window.input_ids.len() {
        let (starts, ends, tokens) = (start.len(), end.len(), window.input_ids.len());
        let value = format!("{starts} starts and {ends} ends of window {}", window.index);
        return Err(DataError::option("the number of logits", value, format!("one for each of its {tokens} tokens")));
    }
    let ends = top_k(end, n_best);
    let pairs = top_k(start, n_best).into_iter().flat_map(|first| ends.iter().map(move |&last| (first, last)));
    let spans =
        pairs.map(|(first, last)| Span { start: first, end: last, start_logit: start[first], end_logit: end[last] });
    Ok(sorted(window, spans, longest))
}

/// What may be an answer of a joint head's pairs, the best first.
///
/// Errors: scores that are not numbers, or lists whose lengths do not fit each other.
pub(super) fn of_beam(window: &Window, beam: &Beam<'_>, longest: usize) -> Result<Vec<Span>, DataError> {
    check("start scores", window, beam.start_scores)?;
    check("end scores", window, beam.end_scores)?;
    check("the logit of no answer", window, beam.no_answer.as_slice())?;
    let (starts, pairs) = (beam.starts.len(), beam.ends.len());
    let fits = beam.start_scores.len() == starts && beam.end_scores.len() == pairs;
    if starts == 0 || !fits || !pairs.is_multiple_of(starts) {
        let (scores, end_scores) = (beam.start_scores.len(), beam.end_scores.len());
        let value = format!("{starts} starts, {scores} scores, {pairs} ends, {end_scores} scores");
        return Err(DataError::option("a beam", value, "K starts and K x E ends, each with a score"));
    }
    let width = pairs / starts;
    let spans = (0..pairs).map(|pair| Span {
        start: beam.starts[pair / width] as usize,
        end: beam.ends[pair] as usize,
        start_logit: beam.start_scores[pair / width],
        end_logit: beam.end_scores[pair],
    });
    Ok(sorted(window, spans, longest))
}

fn check(name: &'static str, window: &Window, scores: &[f32]) -> Result<(), DataError> {
    match scores.iter().any(|score| score.is_nan()) {
        false => Ok(()),
        true => Err(DataError::option(name, format!("NaN in window {}", window.index), "numbers")),
    }
}

/// Those that lie in the context, begin where the window shows most around, and have no more than `longest` tokens.
fn sorted(window: &Window, spans: impl Iterator<Item = Span>, longest: usize) -> Vec<Span> {
    let may_be = |span: &Span| {
        window.is_max_context(span.start)
            && window.word(span.end).is_some()
            && (span.start..span.start + longest).contains(&span.end)
            && span.score().is_finite()
    };
    let mut spans: Vec<Span> = spans.filter(may_be).collect();
    spans.sort_by(|a, b| b.score().total_cmp(&a.score()));
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[CLS] q [SEP] a b c d [SEP]`, of which another window shows more around `d`.
    fn window() -> Window {
        Window {
            index: 3,
            question: 0,
            input_ids: vec![2, 5, 3, 6, 7, 8, 9, 3],
            context: 3..7,
            first_token: 0,
            words: vec![0, 0, 1, 2],
            max_context: vec![true, true, true, false],
            p_mask: vec![0, 1, 1, 0, 0, 0, 0, 1],
            start_position: 0,
            end_position: 0,
            is_impossible: false,
        }
    }

    fn places(spans: &[Span]) -> Vec<(usize, usize)> {
        spans.iter().map(|span| (span.start, span.end)).collect()
    }

    #[test]
    fn the_first_of_equal_numbers_is_higher() {
        assert_eq!(top_k(&[1.0, 3.0, 2.0, 3.0], 3), [1, 3, 2]);
        assert_eq!(top_k(&[1.0, f32::NEG_INFINITY], 5), [0, 1]);
    }

    #[test]
    fn pairs_are_of_the_best_starts_and_ends() {
        let start = [9.0, 8.0, 0.0, 3.0, 2.0, 1.0, 7.0, 0.0, 6.0];
        let end = [9.0, 0.0, 8.0, 1.0, 3.0, 2.0, 4.0, 7.0, 0.0];
        let found = |n_best, longest| places(&of_logits(&window(), &start, &end, n_best, longest).unwrap());
        // In the context there are start 6, which shows more around it elsewhere, and then 3, 4 and 5.
        assert_eq!(found(9, 30), [(3, 6), (3, 4), (4, 6), (3, 5), (4, 4), (5, 6), (3, 3), (4, 5), (5, 5)]);
        assert_eq!(found(9, 2), [(3, 4), (4, 4), (5, 6), (3, 3), (4, 5), (5, 5)][..].to_vec());
        assert_eq!(found(5, 30), [(3, 6), (3, 4)]);
        assert_eq!(found(4, 30), []);
    }

    #[test]
    fn beams_have_ends_for_each_start() {
        let beam = Beam {
            starts: &[4, 3, 6],
            start_scores: &[-0.5, -1.0, -0.1],
            ends: &[6, 3, 5, 4, 6, 6],
            end_scores: &[-0.1, -0.2, -3.0, -0.2, -0.1, -0.1],
            no_answer: None,
        };
        let spans = of_beam(&window(), &beam, 30).unwrap();
        assert_eq!(places(&spans), [(4, 6), (3, 4), (3, 5)]);
        assert_eq!((spans[1].start_logit, spans[1].end_logit), (-1.0, -0.2));
        let out_of_window = Beam { starts: &[40], start_scores: &[0.0], ends: &[41], end_scores: &[0.0], ..beam };
        assert_eq!(of_beam(&window(), &out_of_window, 30).unwrap(), []);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let message = |start: &[f32], end: &[f32]| of_logits(&window(), start, end, 2, 2).unwrap_err().to_string();
        let nan = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, f32::NAN];
        assert_eq!(message(&[0.0; 8], &nan), "end logits is NaN in window 3, expected numbers");
        assert!(message(&[0.0; 7], &[0.0; 7]).contains("7 starts and 7 ends of window 3"));
        assert!(message(&[0.0; 8], &[0.0; 9]).contains("8 starts and 9 ends"));
        let beam = Beam {
            starts: &[3, 4],
            start_scores: &[0.0, 0.0],
            ends: &[3, 4, 5],
            end_scores: &[0.0; 3],
            no_answer: None,
        };
        let refused = |beam| of_beam(&window(), &beam, 2).unwrap_err().to_string();
        assert!(refused(beam).contains("2 starts, 2 scores, 3 ends, 3 scores"));
        assert!(
            refused(Beam { starts: &[], start_scores: &[], ends: &[], end_scores: &[], ..beam }).contains("0 starts")
        );
        let doubt = Beam { ends: &[3, 4], end_scores: &[0.0; 2], no_answer: Some(f32::NAN), ..beam };
        assert!(refused(doubt).starts_with("the logit of no answer is NaN"));
    }
}
