use crate::MetricError;

/// Top-k accuracy for several k.
///
/// The rank of a label is the number of classes that come before it when classes are ordered by falling logit; a sample
/// counts for k when its label's rank is below k. Equal logits are ordered by class index, the lower index first. Where
/// k is not smaller than the number of classes every sample counts.
#[derive(Debug, Clone, PartialEq)]
pub struct TopK {
    classes: usize,
    ks: Vec<usize>,
    correct: Vec<u64>,
    samples: u64,
}

impl TopK {
    /// `classes` is the width of a row of logits; each k must be at least 1.
    pub fn new(classes: usize, ks: &[usize]) -> Result<Self, MetricError> {
        if classes == 0 {
            return Err(MetricError::Option { name: "classes", value: "0".into(), expected: "at least 1" });
        }
        if ks.is_empty() || ks.contains(&0) {
            let value = format!("{ks:?}");
            return Err(MetricError::Option { name: "k", value, expected: "a list of numbers of at least 1" });
        }
        Ok(Self { classes, ks: ks.to_vec(), correct: vec![0; ks.len()], samples: 0 })
    }

    /// Adds a batch: `logits` `[N, classes]` in row order and `labels` `[N]`.
    ///
    /// A wrong shape, a label outside the classes or a NaN logit is an error and leaves the accumulator as it was.
    pub fn update(&mut self, logits: &[f32], labels: &[i32]) -> Result<(), MetricError> {
        let classes = self.classes;
        if labels.len().checked_mul(classes) != Some(logits.len()) {
            return Err(MetricError::Shape { logits: logits.len(), labels: labels.len(), classes });
        }
        let mut correct = vec![0; self.ks.len()];
        for (sample, (row, &label)) in logits.chunks_exact(classes).zip(labels).enumerate() {
            let rank = rank_of_label(row, label, sample)?;
            for (count, &k) in correct.iter_mut().zip(&self.ks) {
                *count += u64::from(rank < k);
            }
        }
        for (total, count) in self.correct.iter_mut().zip(correct) {
            *total += count;
        }
        self.samples += labels.len() as u64;
        Ok(())
    }

    /// Samples seen so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Samples whose label is among the `k` best, `None` when `k` is not one of those asked for.
    pub fn correct(&self, k: usize) -> Option<u64> {
        self.ks.iter().position(|&known| known == k).map(|i| self.correct[i])
    }

    /// Fraction in 0..=1 for `k`, `None` when `k` is not one of those asked for or no sample was seen.
    pub fn accuracy(&self, k: usize) -> Option<f64> {
        let correct = self.correct(k)?;
        (self.samples > 0).then(|| correct as f64 / self.samples as f64)
    }
}

fn rank_of_label(row: &[f32], label: i32, sample: usize) -> Result<usize, MetricError> {
    if let Some(class) = row.iter().position(|logit| logit.is_nan()) {
        return Err(MetricError::NanLogit { sample, class });
    }
    let target = usize::try_from(label).ok().filter(|&target| target < row.len());
    let target = target.ok_or(MetricError::Label { sample, label, classes: row.len() })?;
    let before = row[..target].iter().filter(|&&logit| logit >= row[target]).count();
    let after = row[target + 1..].iter().filter(|&&logit| logit > row[target]).count();
    Ok(before + after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_ranks_over_batches() {
        let mut top = TopK::new(3, &[1, 2]).unwrap();
        assert_eq!(top.accuracy(1), None);
        top.update(&[0.1, 0.7, 0.2, 0.5, 0.3, 0.4], &[1, 2]).unwrap();
        top.update(&[3.0, 2.0, 1.0], &[2]).unwrap();
        assert_eq!(top.samples(), 3);
        assert_eq!((top.correct(1), top.correct(2), top.correct(5)), (Some(1), Some(2), None));
        assert_eq!(top.accuracy(2), Some(2.0 / 3.0));
    }

    #[test]
    fn ties_go_to_the_lower_class() {
        let mut top = TopK::new(3, &[1, 2]).unwrap();
        top.update(&[1.0, 1.0, 1.0], &[0]).unwrap();
        assert_eq!(top.correct(1), Some(1));
        top.update(&[1.0, 1.0, 1.0], &[1]).unwrap();
        assert_eq!((top.correct(1), top.correct(2)), (Some(1), Some(2)));
    }

    #[test]
    fn infinite_logits_are_ordered() {
        let mut top = TopK::new(2, &[1]).unwrap();
        top.update(&[f32::NEG_INFINITY, f32::INFINITY], &[1]).unwrap();
        assert_eq!(top.correct(1), Some(1));
    }

    #[test]
    fn top_5_of_two_classes_is_always_right() {
        let mut top = TopK::new(2, &[5]).unwrap();
        top.update(&[1.0, 2.0], &[0]).unwrap();
        assert_eq!(top.accuracy(5), Some(1.0));
    }

    #[test]
    fn bad_batches_are_errors_and_change_nothing() {
        let mut top = TopK::new(2, &[1]).unwrap();
        let nan = top.update(&[0.0, 1.0, 0.0, f32::NAN], &[1, 0]);
        assert_eq!(nan, Err(MetricError::NanLogit { sample: 1, class: 1 }));
        let label = top.update(&[0.0, 1.0], &[2]);
        assert_eq!(label, Err(MetricError::Label { sample: 0, label: 2, classes: 2 }));
        assert_eq!(top.update(&[0.0, 1.0], &[-1]), Err(MetricError::Label { sample: 0, label: -1, classes: 2 }));
        let shape = top.update(&[0.0, 1.0, 2.0], &[0]).unwrap_err();
        assert_eq!(shape.to_string(), "top-k accuracy: 3 logits for 1 labels of 2 classes, expected 2 logits");
        assert_eq!(top.samples(), 0);
        assert_eq!(top.correct(1), Some(0));
    }

    #[test]
    fn options_are_checked() {
        assert!(TopK::new(0, &[1]).is_err());
        assert!(TopK::new(2, &[]).is_err());
        assert!(TopK::new(2, &[1, 0]).is_err());
    }
}
