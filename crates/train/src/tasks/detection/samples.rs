//! Sample pictures of a run.

use super::detector::Detector;
use super::infer::{Network, with_objects};
use super::kind::DetectorKind;
use super::sources;
use crate::error::TrainError;
use crate::loaded_weights::WhichWeights;
use crate::rundir::RunDir;
use crate::session::ComputeOptions;
use crate::tasks::infer::DRAWN_SCORE;
use crate::tasks::samples::{self, Sample};
use crate::tasks::source::DataSource;
use bessemer_data::{FileFormat, Image, Purpose, Scratch};

/// Detects objects in `count` images spread over the run's evaluation set, with its best weights, and writes them with boxes.
/// Nothing is written where a run has no evaluation set.
///
/// # Errors
/// A run that is not complete, data that has gone, a folder that cannot be written.
pub(super) fn write(
    kind: &'static dyn DetectorKind,
    run: &RunDir,
    count: usize,
    compute: &ComputeOptions,
) -> Result<Vec<Sample>, TrainError> {
    let recipe = run.recipe()?;
    let detector = Detector::load(kind, &recipe.model.name, run.path(), WhichWeights::AsEvaluated)?;
    let (data, classes) = (DataSource::of(&recipe)?, detector.categories.as_deref());
    let Some((source, _)) = sources::evaluation_set(&data, &recipe, &detector.settings, classes)? else {
        return Ok(Vec::new());
    };
    let mut network = Network::new(detector, 1, compute)?;
    let folder = run.predictions();
    samples::make_folder(&folder)?;
    let (set, count) = (&*source.set, count.min(source.set.len()));
    let mut samples = Vec::with_capacity(count);
    let mut scratch = Scratch::default();
    for number in 0..count {
        let index = number * set.len() / count;
        let [height, width] = set.image_size(index);
        let mut image = Image::filled(width, height, [0; 3]);
        let mut rng = Purpose::Augment.stream(0, 0, index as u64);
        let objects = set.load(index, &mut rng, &mut scratch, &mut image.pixels)?;
        let found = network.detect(&[&image])?.pop().unwrap_or_default();
        let shown: Vec<_> = found.into_iter().filter(|object| object.score >= DRAWN_SCORE).collect();
        let picture = format!("sample-{number:03}.png");
        with_objects(&image, &shown).write(&folder.join(&picture), FileFormat::Png)?;
        let counted = |count: usize| if count == 1 { "1 object".to_owned() } else { format!("{count} objects") };
        samples.push(Sample {
            picture,
            label: counted(objects.objects.len()),
            predicted: counted(shown.len()),
            probability: shown.first().map_or(0.0, |best| best.score),
        });
    }
    samples::write(&folder, &samples)?;
    Ok(samples)
}
