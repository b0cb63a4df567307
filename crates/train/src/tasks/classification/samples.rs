//! Sample pictures of a run.

use super::classifier::Classifier;
use super::infer::{ClassScore, best_classes};
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
    let names: Vec<String> = set.class_names().iter().map(|name| readable_class(name).to_owned()).collect();
    let mut samples = Vec::with_capacity(count);
    for (i, pixels) in images.chunks_exact(height * width * 3).enumerate() {
        let picture = format!("sample-{i:03}.png");
        let drawn = Image { width, height, pixels: pixels.to_vec() };
        drawn.write(&folder.join(&picture), FileFormat::Png)?;
        let best = best_classes(&logits[i * outputs..][..outputs], &classifier.outputs, 1, &names);
        let ClassScore { name: predicted, probability, .. } = best.into_iter().next().expect("a model has classes");
        let label = names.get(labels[i]).cloned().unwrap_or_else(|| labels[i].to_string());
        samples.push(Sample { picture, label, predicted, probability });
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
