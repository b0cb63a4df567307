//! Sample pictures of a run.

use super::classifier::Classifier;
use crate::error::TrainError;
use crate::loaded_weights::WhichWeights;
use crate::rundir::RunDir;
use crate::session::ComputeOptions;
use crate::tasks::samples::{self, Sample};
use crate::tasks::source::DataSource;
use crate::tasks::{Array, Feeds};
use bessemer_data::{FileFormat, Image, Label, LabelledImages, Purpose, Scratch, readable_class};

/// Classifies `count` pictures spread over the run's evaluation set, with its best weights, and writes them.
/// Nothing is written where a run has no evaluation set.
///
/// # Errors
/// A run that is not complete, data that has gone, a folder that cannot be written.
pub(super) fn write(run: &RunDir, count: usize, compute: &ComputeOptions) -> Result<Vec<Sample>, TrainError> {
    let recipe = run.recipe()?;
    let Some(set) = DataSource::of(&recipe)?.evaluation_set(&recipe)? else { return Ok(Vec::new()) };
    let classifier = Classifier::load(&recipe.model.name, run.path(), WhichWeights::AsEvaluated)?;
    let count = count.min(set.len());
    let mut session = classifier.session(count, compute)?;
    let (images, labels) = load(&*set, count)?;
    session.run(&Feeds::from([("images", Array::U8(images.clone()))]))?;
    let (outputs, logits) = (classifier.options.num_classes, session.output("logits")?);
    let folder = run.predictions();
    samples::make_folder(&folder)?;
    let [height, width] = set.image_size(0);
    let name = |class: usize| {
        set.class_names().get(class).map_or_else(|| class.to_string(), |name| readable_class(name).to_owned())
    };
    let mut samples = Vec::with_capacity(count);
    for (i, pixels) in images.chunks_exact(height * width * 3).enumerate() {
        let picture = format!("sample-{i:03}.png");
        let drawn = Image { width, height, pixels: pixels.to_vec() };
        drawn.write(&folder.join(&picture), FileFormat::Png)?;
        let (class, probability) = best(&logits[i * outputs..][..outputs], classifier.label_offset);
        samples.push(Sample { picture, label: name(labels[i]), predicted: name(class), probability });
    }
    samples::write(&folder, &samples)?;
    Ok(samples)
}

/// Pictures `[count, H, W, 3]` at even distances in the set, which has pictures of one size, and their labels.
fn load(set: &LabelledImages, count: usize) -> Result<(Vec<u8>, Vec<usize>), TrainError> {
    let [height, width] = set.image_size(0);
    let mut images = vec![0; count * height * width * 3];
    let mut labels = Vec::with_capacity(count);
    let mut scratch = Scratch::default();
    for (i, out) in images.chunks_exact_mut(height * width * 3).enumerate() {
        let index = i * set.len() / count;
        let mut rng = Purpose::Augment.stream(0, 0, index as u64);
        let Label(label) = set.load(index, &mut rng, &mut scratch, out)?;
        labels.push(label as usize);
    }
    Ok((images, labels))
}

/// The best class after `offset` outputs that are none, and its probability.
fn best(logits: &[f32], offset: usize) -> (usize, f64) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - largest).exp()).sum();
    let classes = logits.iter().enumerate().skip(offset);
    let (output, logit) = classes.max_by(|a, b| a.1.total_cmp(b.1)).unwrap_or((offset, &largest));
    (output - offset, f64::from(logit - largest).exp() / sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_class_counts_from_the_offset() {
        let (class, probability) = best(&[9.0, 1.0, 2.0], 1);
        assert_eq!(class, 1);
        let total: f64 = [9.0_f64, 1.0, 2.0].map(f64::exp).iter().sum();
        assert!((probability - 2.0_f64.exp() / total).abs() < 1e-12);
    }
}
