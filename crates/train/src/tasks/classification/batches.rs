//! Images as feeds.

use super::mixup::Mix;
use super::recipe::ClassifierRecipe;
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::tasks::loaded::Feeder;
use crate::tasks::{Array, Feeds};
use bessemer_data::Position;
use bessemer_models::MixupWeight;

/// Adds to the loader's `images u8[N, H, W, 3]` and `labels i32[N]` the feeds of mixup where there is one.
pub(super) struct Images {
    /// Added to every label.
    label_offset: i32,
    mixup: Option<Mixup>,
}

struct Mixup {
    seed: u64,
    form: MixupWeight,
    alpha: f64,
    batch_size: usize,
}

impl Images {
    /// As they are.
    pub(super) fn plain(label_offset: i32) -> Self {
        Self { label_offset, mixup: None }
    }

    /// As a recipe trains on them.
    ///
    /// # Errors
    /// A recipe of another family.
    pub(super) fn training(recipe: &Recipe) -> Result<Self, TrainError> {
        let (train, ClassifierRecipe { images, labels, .. }) = (&recipe.train, recipe.own()?);
        let (seed, alpha, batch_size) = (train.seed, labels.mixup_alpha, train.batch_size as usize);
        let mixup = (alpha > 0.0).then_some(Mixup { seed, form: labels.mixup_form, alpha, batch_size });
        Ok(Self { label_offset: images.label_offset as i32, mixup })
    }
}

impl Feeder for Images {
    fn complete(&self, feeds: &mut Feeds, position: Position) {
        feeds.i32_mut("labels").iter_mut().for_each(|label| *label += self.label_offset);
        if let Some(Mixup { seed, form, alpha, batch_size }) = &self.mixup {
            let Mix { weights, order } = Mix::draw(*seed, position, *form, *alpha, *batch_size);
            feeds.push("mixup_order", Array::I32(order));
            feeds.push("mixup_weight", Array::F32(weights));
        }
    }
}
