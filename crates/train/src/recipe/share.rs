//! Steps of a recipe for a number of ranks.

use super::{Override, Recipe, RecipeError};

/// What becomes of a step whose micro-batches are to be shared among ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepShare {
    /// It stays as the recipe says: there must be a micro-batch for each rank, or several.
    #[default]
    Recipe,
    /// Weak scaling: each rank takes the step of the recipe, all of them together one that is as many times as large. The learning rate
    /// follows where the recipe gives it for a number of samples (`schedule.lr_per`); what is counted in steps stays.
    Weak,
    /// It stays as large: micro-batches are cut until there are as many for each rank.
    SplitBatch,
}

impl Recipe {
    /// The recipe for a number of ranks.
    ///
    /// # Errors
    /// Micro-batches that cannot be cut into as many equal parts.
    pub fn shared(&self, share: StepShare, ranks: u64) -> Result<Self, RecipeError> {
        let (batch, accumulation) = (self.train.batch_size, self.train.accumulation);
        match share {
            StepShare::Recipe => Ok(self.clone()),
            StepShare::Weak => self.with_overrides(&[micro_batches(accumulation * ranks)]),
            StepShare::SplitBatch => {
                let parts = ranks / greatest_common_divisor(ranks, accumulation);
                if !batch.is_multiple_of(parts) {
                    let problem = format!(
                        "{batch} samples of a micro-batch cannot be cut into {parts} equal parts, so that {ranks} ranks share \
                         {accumulation} of them; allowed: a multiple of {parts}"
                    );
                    return Err(self.problem("train.batch_size", problem));
                }
                let size = Override::new("train.batch_size", (batch / parts) as i64);
                self.with_overrides(&[size, micro_batches(accumulation * parts)])
            }
        }
    }

    fn problem(&self, path: &str, problem: String) -> RecipeError {
        RecipeError::Field { origin: self.name.clone(), path: path.to_owned(), problem }
    }
}

fn micro_batches(count: u64) -> Override {
    Override::new("train.accumulation", count as i64)
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of a micro-batch, and micro-batches of a step.
    fn sizes(share: StepShare, ranks: u64, batch: i64, accumulation: i64) -> Result<(u64, u64), String> {
        let overrides = [Override::new("train.batch_size", batch), Override::new("train.accumulation", accumulation)];
        let shared =
            Recipe::load("cifar", &overrides).unwrap().shared(share, ranks).map_err(|error| error.to_string())?;
        Ok((shared.train.batch_size, shared.train.accumulation))
    }

    #[test]
    fn steps_are_multiplied_or_cut() {
        assert_eq!(sizes(StepShare::Recipe, 3, 32, 4), Ok((32, 4)));
        assert_eq!(sizes(StepShare::Weak, 3, 32, 4), Ok((32, 12)));
        for (ranks, batch, accumulation, expected) in
            [(1, 32, 1, (32, 1)), (2, 32, 1, (16, 2)), (8, 32, 1, (4, 8)), (8, 32, 4, (16, 8)), (6, 32, 3, (16, 6))]
        {
            assert_eq!(sizes(StepShare::SplitBatch, ranks, batch, accumulation), Ok(expected), "{ranks} ranks");
        }
        let error = sizes(StepShare::SplitBatch, 3, 32, 2).unwrap_err();
        assert_eq!(
            error,
            "recipe cifar: train.batch_size: 32 samples of a micro-batch cannot be cut into 3 equal parts, so that 3 ranks \
             share 2 of them; allowed: a multiple of 3"
        );
    }

    /// A step that is as large has the same learning rate; a larger one that of its size.
    #[test]
    fn learning_rates_follow_the_size_of_a_step() {
        let recipe = Recipe::load("resnet50-90e", &[]).unwrap();
        let rate = |recipe: &Recipe| recipe.schedule.peak_lr(recipe.train.step_samples());
        let shared = |share| rate(&recipe.shared(share, 2).unwrap());
        assert_eq!(shared(StepShare::SplitBatch), rate(&recipe));
        assert_eq!(shared(StepShare::Weak), 2.0 * rate(&recipe));
    }
}
