use crate::args::model;
use crate::output::{Table, print, print_json};
use bessemer_bench::show;
use bessemer_models::{ModelSpec, Summary, ZOO};
use bessemer_train::Recipe;
use bessemer_train::recipe::builtin_names;
use clap::Args;
use serde::Serialize;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer models
  bessemer models resnet50
  bessemer models --json";

/// List the models: parameters, FLOPs of a picture, variants, recipes
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// One model only
    #[arg(value_name = "NAME", value_parser = model)]
    pub name: Option<&'static ModelSpec>,
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
    input: [usize; 3],
    classes: usize,
    variants: &'static [&'static str],
    recipes: Vec<&'static str>,
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let chosen = ZOO.iter().filter(|spec| options.name.is_none_or(|name| name.name == spec.name));
    let entries = chosen.map(entry).collect::<anyhow::Result<Vec<_>>>()?;
    match (options.json, options.name, entries.as_slice()) {
        (true, Some(_), [one]) => print_json(one),
        (true, ..) => print_json(&entries),
        (false, Some(_), [one]) => print(&one_model(one)),
        (false, ..) => print(&all_models(&entries)),
    }
}

fn entry(spec: &ModelSpec) -> anyhow::Result<Entry> {
    let Summary { parameters, tensors, flops_per_sample } = spec.summary()?;
    let options = spec.options();
    let [height, width] = options.image_size;
    let trains = |recipe: &str| Recipe::load(recipe, &[]).is_ok_and(|recipe| recipe.model.name == spec.name);
    Ok(Entry {
        name: spec.name,
        description: spec.description,
        parameters,
        parameter_tensors: tensors,
        flops_per_sample,
        input: [height, width, 3],
        classes: options.num_classes,
        variants: spec.variants,
        recipes: builtin_names().filter(|name| trains(name)).collect(),
    })
}

fn all_models(entries: &[Entry]) -> String {
    let mut table = Table::new(2, &["model", "description", "parameters", "FLOPs", "input", "classes"]);
    for entry in entries {
        let [height, width, _] = entry.input;
        table.row([
            entry.name.to_owned(),
            entry.description.to_owned(),
            show::scaled(entry.parameters as f64),
            show::scaled(entry.flops_per_sample as f64),
            format!("{height}x{width}"),
            entry.classes.to_string(),
        ]);
    }
    table.to_string()
}

fn one_model(entry: &Entry) -> String {
    let [height, width, _] = entry.input;
    let mut table = Table::new(2, &[]);
    let mut fact = |name: &str, value: String| table.row([name.to_owned(), value]);
    fact("model", format!("{}: {}", entry.name, entry.description));
    fact("parameters", format!("{} in {} tensors", entry.parameters, entry.parameter_tensors));
    fact("FLOPs", format!("{} in the forward pass of one picture", show::scaled(entry.flops_per_sample as f64)));
    fact("input", format!("{height}x{width} pixels, {} classes", entry.classes));
    fact("variants", entry.variants.join(", "));
    fact("recipes", if entry.recipes.is_empty() { "none of its own".to_owned() } else { entry.recipes.join(", ") });
    table.to_string()
}
