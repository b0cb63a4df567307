use crate::args::model;
use crate::output::{Table, print, print_json};
use bessemer_bench::show;
use bessemer_models::Summary;
use bessemer_train::Recipe;
use bessemer_train::recipe::builtin_names;
use bessemer_train::tasks::family::SampleInfo;
use bessemer_train::tasks::registry::{ZooModel, all};
use clap::Args;
use serde::Serialize;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer models
  bessemer models resnet50
  bessemer models --json";

/// List the models: parameters, FLOPs of a sample, variants, recipes
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// One model only
    #[arg(value_name = "NAME", value_parser = model)]
    pub name: Option<ZooModel>,
    /// Print JSON instead of a table
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    description: &'static str,
    parameters: u64,
    parameter_tensors: usize,
    flops_per_sample: u64,
    /// Shape of a sample.
    input: Vec<usize>,
    /// Outputs: classes of an image, words of a place in a text.
    classes: usize,
    #[serde(skip)]
    takes: String,
    variants: &'static [&'static str],
    recipes: Vec<&'static str>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let chosen = all().filter(|model| options.name.is_none_or(|one| one.name() == model.name()));
    let entries = chosen.map(entry).collect::<anyhow::Result<Vec<_>>>()?;
    match (options.json, options.name, entries.as_slice()) {
        (true, Some(_), [one]) => print_json(one),
        (true, ..) => print_json(&entries),
        (false, Some(_), [one]) => print(&one_model(one)),
        (false, ..) => print(&all_models(&entries)),
    }
}

fn entry(model: ZooModel) -> anyhow::Result<Entry> {
    let (family, name) = (model.family(), model.name());
    let Summary { parameters, tensors, flops_per_sample } = family.summary(name)?;
    let SampleInfo { shape: input, text: takes, classes } = family.sample(name)?;
    let trains = |recipe: &str| Recipe::load(recipe, &[]).is_ok_and(|recipe| recipe.model.name == name);
    Ok(Entry {
        name,
        description: model.description(),
        parameters,
        parameter_tensors: tensors,
        flops_per_sample,
        input,
        classes,
        takes,
        variants: model.variants(),
        recipes: builtin_names().filter(|name| trains(name)).collect(),
    })
}

fn all_models(entries: &[Entry]) -> String {
    let mut table = Table::new(2, &["model", "description", "parameters", "FLOPs", "input", "outputs"]);
    for entry in entries {
        table.row([
            entry.name.to_owned(),
            entry.description.to_owned(),
            show::scaled(entry.parameters as f64),
            show::scaled(entry.flops_per_sample as f64),
            entry.takes.clone(),
            entry.classes.to_string(),
        ]);
    }
    table.to_string()
}

fn one_model(entry: &Entry) -> String {
    let mut table = Table::new(2, &[]);
    let mut fact = |name: &str, value: String| table.row([name.to_owned(), value]);
    fact("model", format!("{}: {}", entry.name, entry.description));
    fact("parameters", format!("{} in {} tensors", entry.parameters, entry.parameter_tensors));
    fact("FLOPs", format!("{} in the forward pass of one sample", show::scaled(entry.flops_per_sample as f64)));
    fact("input", entry.takes.clone());
    fact("outputs", entry.classes.to_string());
    fact("variants", entry.variants.iter().map(|setting| format!("--set {setting}")).collect::<Vec<_>>().join(", "));
    fact("recipes", if entry.recipes.is_empty() { "none of its own".to_owned() } else { entry.recipes.join(", ") });
    table.to_string()
}
