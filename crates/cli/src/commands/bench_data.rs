use crate::args::{Common, at_least_one, model};
use crate::output::{Table, print, print_json};
use bessemer_bench::loading::{Consumption, Loading, PredictedConsumption, Together, loading};
use bessemer_bench::show::{counted, significant};
use bessemer_cuda::sheet::Sheet;
use bessemer_data::OnBadSample;
use bessemer_train::recipe::Override;
use bessemer_train::tasks::registry::ZooModel;
use bessemer_train::{Recipe, StopSignal};
use clap::Args;
use serde::Serialize;
use std::time::Duration;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer bench data resnet50 --data imagenet/
  bessemer bench data efficientdet-d0 --data coco/ --workers 4 --seconds 30
  bessemer bench data bert-base --data text/ --no-step
  bessemer bench data resnet50 --data imagenet/ --set data.image_size=160 --json";

/// Measure how fast training batches are loaded, and where the time goes
///
/// Batches are loaded as `train` would load them for the model, and thrown away: read, decoded, augmented, cut, masked and
/// copied by the recipe's settings. Beside it stands what the model takes in training on this machine, by a few steps
/// with random inputs, what it takes where its batches are loaded meanwhile, with a mark where it waits for them, and what an H200 is predicted to take as `explain` predicts it, with the number of this machine's cores that feed it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The model whose batches are loaded
    #[arg(value_parser = model)]
    pub model: ZooModel,
    /// The data, as for `train`
    #[arg(long, value_name = "DIR|shapes|synthetic", help_heading = "What to load")]
    pub data: String,
    /// A recipe by name or file [default: one that suits the model]
    #[arg(long, value_name = "NAME|FILE", help_heading = "What to load")]
    pub recipe: Option<String>,
    /// What is done where a sample is damaged: stop, or skip it [default: the recipe's]
    #[arg(long, value_name = "stop|skip", help_heading = "What to load")]
    pub on_bad_sample: Option<OnBadSample>,
    /// Another value for a field of the recipe, e.g. train.batch_size=64; as often as needed
    #[arg(long = "set", value_name = "FIELD=VALUE", help_heading = "What to load")]
    pub set: Vec<Override>,
    /// Threads that prepare batches
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true, value_parser = at_least_one,
          help_heading = "Measurement")]
    pub workers: usize,
    /// How long to load, from the second batch on, and how long to train on what is loaded
    #[arg(long, value_name = "N", default_value = "10", allow_negative_numbers = true, value_parser = at_least_one,
          help_heading = "Measurement")]
    pub seconds: usize,
    /// Samples of the steps that show what the model takes
    #[arg(long, value_name = "N", default_value = "4", allow_negative_numbers = true, value_parser = at_least_one,
          help_heading = "Measurement")]
    pub step_batch_size: usize,
    /// Do not run steps of the model
    #[arg(long, conflicts_with = "step_batch_size", help_heading = "Measurement")]
    pub no_step: bool,
    /// Print JSON instead of tables
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Measured {
    loading: Loading,
    training_here: Option<Consumption>,
    training_while_loading: Option<Together>,
    predicted: Option<PredictedConsumption>,
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let recipe = recipe(options, common)?;
    let stop = StopSignal::from_system(None)?;
    common.notify(&format!("loading for {} s with {}", options.seconds, counted(options.workers as u64, "thread")));
    let loading = loading(&recipe, Duration::from_secs(options.seconds as u64), &stop)?;
    let training_here = match options.no_step {
        true => None,
        false => {
            let (model, batch_size) = (options.model.name(), options.step_batch_size);
            common.notify(&format!("training {model} for 4 steps of {batch_size}, on random inputs"));
            Some(loading.consumption(&recipe, batch_size, common.device())?)
        }
    };
    let together = match options.no_step {
        true => None,
        false => {
            common.notify(&format!(
                "training {} for {} s on what is loaded meanwhile",
                recipe.model.name, options.seconds
            ));
            let recipe = of_steps(&recipe, options.step_batch_size as u64);
            Some(Together::measure(&recipe, Duration::from_secs(options.seconds as u64), common.device(), &stop)?)
        }
    };
    let predicted = loading.predicted(&Sheet::usual())?;
    match options.json {
        true => print_json(&Measured { loading, training_here, training_while_loading: together, predicted }),
        false => print(&table(&loading, training_here.as_ref(), together.as_ref(), predicted.as_ref())),
    }
}

fn recipe(options: &Options, common: &Common) -> anyhow::Result<Recipe> {
    let family = options.model.family();
    let mut overrides = match options.recipe {
        Some(_) => Vec::new(),
        None => family.fields_of_data(&options.data),
    };
    overrides.extend([
        Override::new("model.name", options.model.name()),
        Override::new("data.source", options.data.as_str()),
        Override::new("loader.workers", options.workers as i64),
    ]);
    overrides.extend(options.on_bad_sample.map(|choice| Override::new("loader.on_bad_sample", choice.name())));
    overrides.extend(common.seed.map(|seed| Override::new("train.seed", i64::from(seed))));
    overrides.extend(common.precision().map(|precision| Override::new("precision.compute", precision.name())));
    overrides.extend(options.set.iter().cloned());
    let usual = || family.default_recipe(options.model.name(), Some(&options.data)).to_owned();
    Ok(Recipe::load(&options.recipe.clone().unwrap_or_else(usual), &overrides)?)
}

/// The recipe with steps of one micro-batch of this size.
fn of_steps(recipe: &Recipe, batch_size: u64) -> Recipe {
    let mut recipe = recipe.clone();
    (recipe.train.batch_size, recipe.train.accumulation) = (batch_size, 1);
    recipe
}

fn table(
    loading: &Loading,
    training: Option<&Consumption>,
    together: Option<&Together>,
    predicted: Option<&PredictedConsumption>,
) -> String {
    let Loading { unit, workers, samples, seconds, .. } = loading;
    let threads = counted(*workers, "thread");
    let mut text = format!(
        "loaded      {} {unit}/s with {threads}, {} each ({samples} {unit} in {seconds:.1} s, batches of {})\n",
        significant(loading.samples_per_second, 3),
        significant(loading.samples_per_second_per_worker, 3),
        loading.batch_size,
    );
    if let Some(training) = training {
        text += &format!(
            "the model   {} {unit}/s in training here (batch {}, random inputs): {} loading threads keep up with it\n",
            significant(training.samples_per_second, 3),
            training.batch_size,
            significant(training.workers_needed, 2),
        );
    }
    if let Some(together) = together {
        let load = if *workers == 1 { "loads" } else { "load" };
        text += &format!(
            "together    {} {unit}/s in training on these data while {threads} {load} them (batch {}, {}); {:.0} % of the \
             time the step waits for its batch: {}\n",
            significant(together.samples_per_second, 3),
            together.batch_size,
            counted(together.steps, "step"),
            100.0 * together.waiting,
            if together.is_input_bound(loading, training) { "input-bound" } else { "not input-bound" },
        );
    }
    if let Some(PredictedConsumption { product, precision, consumption }) = predicted {
        text += &format!(
            "a GPU       {product} is predicted to take {} {unit}/s in training ({precision}, batch {}; by the sheet that explain has of it): {} of these cores feed it\n",
            significant(consumption.samples_per_second, 3),
            consumption.batch_size,
            consumption.workers_needed.ceil(),
        );
    }
    let mut stages = Table::new(1, &["stage", "ms a sample", "share"]);
    let all: f64 = loading.stage_ms_per_sample.iter().map(|(_, time)| time).sum();
    for (stage, time) in &loading.stage_ms_per_sample {
        let share = format!("{:.0} %", 100.0 * time / all);
        stages.row([stage.name().to_owned(), significant(*time, 3), share]);
    }
    text + &stages.to_string()
}
