//! The largest batch that fits: doubled until one does not, then halved in between.

use crate::peers::protocol::{Failure, FailureKind};

/// No batch is larger.
const MOST: usize = 1 << 16;
/// The batch is found to within this share of it.
const EXACTNESS: usize = 8;

/// `fits` tries a batch. Failures that say that a batch is too large are no errors, unless not even one sample fits.
///
/// # Errors
/// The failure of another kind, or of one sample.
pub(super) fn search(mut fits: impl FnMut(usize) -> Result<(), Failure>) -> Result<usize, Failure> {
    let (mut good, mut bad) = (0, None);
    let mut next = 1;
    while next <= MOST {
        match fits(next) {
            Ok(()) => good = next,
            Err(failure) if good > 0 && is_too_large(&failure) => bad = Some(next),
            Err(failure) => return Err(failure),
        }
        next = match bad {
            None => 2 * good,
            Some(bad) if bad - good > (good / EXACTNESS).max(1) => good + (bad - good) / 2,
            Some(_) => return Ok(good),
        };
    }
    Ok(good)
}

/// A batch that takes longer than the limit is of no use either.
fn is_too_large(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::Memory | FailureKind::TimeLimit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(most: usize) -> (Result<usize, Failure>, Vec<usize>) {
        let mut tried = Vec::new();
        let found = search(|batch| {
            tried.push(batch);
            if batch <= most { Ok(()) } else { Err(Failure::new(FailureKind::Memory, "")) }
        });
        (found, tried)
    }

    #[test]
    fn doubles_then_halves() {
        assert_eq!(limited(5), (Ok(5), vec![1, 2, 4, 8, 6, 5]));
        assert_eq!(limited(1), (Ok(1), vec![1, 2]));
        // 512 fits, 1024 does not; 768, 896 and 960 do, which is near enough to 1024.
        assert_eq!(limited(1000).0, Ok(960));
    }

    #[test]
    fn what_does_not_fit_at_all_or_is_broken_is_an_error() {
        assert_eq!(limited(0).0.unwrap_err().kind, FailureKind::Memory);
        let broken = search(|batch| match batch {
            4 => Err(Failure::new(FailureKind::Failed, "bad")),
            _ => Ok(()),
        });
        assert_eq!(broken.unwrap_err().reason, "bad");
    }
}
