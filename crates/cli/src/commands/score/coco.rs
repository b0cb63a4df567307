use crate::args::Common;
use crate::class_table::class_table;
use crate::failure::Usage;
use crate::output::{Csv, Table, print, print_json};
use bessemer_data::coco::{Instances, Results};
use bessemer_data::read_text;
use bessemer_metrics::coco::{CocoError, CocoScores, MAX_DETECTIONS, SCORE_NAMES, Scores, evaluate};
use bessemer_train::tasks::class_scores::ClassScores;
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer score coco --data instances_val2017.json --predictions results.json
  bessemer score coco --data instances_val2017.json --predictions results.json --kind segm --classes
  bessemer score coco --data instances_val2017.json --predictions results.json --images some.txt
  bessemer score coco --data instances_val2017.json --predictions results.json --json";

/// IoU thresholds, area range and number of detections per image and category of each score.
const MEANINGS: [[&str; 3]; 12] = [
    ["0.50:0.95", "all", "100"],
    ["0.50", "all", "100"],
    ["0.75", "all", "100"],
    ["0.50:0.95", "small", "100"],
    ["0.50:0.95", "medium", "100"],
    ["0.50:0.95", "large", "100"],
    ["0.50:0.95", "all", "1"],
    ["0.50:0.95", "all", "10"],
    ["0.50:0.95", "all", "100"],
    ["0.50:0.95", "small", "100"],
    ["0.50:0.95", "medium", "100"],
    ["0.50:0.95", "large", "100"],
];

/// Average precision and recall of detected objects, as pycocotools computes them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The annotated objects, as instances_val2017.json
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub data: PathBuf,
    /// The detections: [{"image_id", "category_id", "score", "bbox" or "segmentation"}]
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub predictions: PathBuf,
    /// Compare on these images alone: an id or a file name in each line
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub images: Option<PathBuf>,
    /// Whether boxes or masks are compared
    #[arg(long, value_enum, default_value_t = MatchKind::Bbox, help_heading = "Input")]
    pub kind: MatchKind,
    /// Show the scores of each category too
    #[arg(long, help_heading = "Output")]
    pub classes: bool,
    /// Print JSON with all digits instead of a table; a score without objects is -1
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Print the scores of each category as CSV (RFC 4180) instead: a line of column names, and a row for each
    #[arg(long, conflicts_with = "json", requires = "classes", help_heading = "Output")]
    pub csv: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MatchKind {
    Bbox,
    Segm,
}

impl MatchKind {
    fn name(self) -> &'static str {
        match self {
            Self::Bbox => "bbox",
            Self::Segm => "segm",
        }
    }
}

pub(super) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let (instances, results) = read(options)?;
    warn_about(&instances, &results, options, common);
    let threads = common.device().threads;
    let sizes = (instances.images().len(), instances.categories().len());
    let scores = match options.kind {
        MatchKind::Bbox => {
            let detections = results.boxes(&instances, threads)?;
            evaluate(sizes.0, sizes.1, &instances.boxes(), &detections, threads)
        }
        MatchKind::Segm => {
            let (truths, detections) = (instances.masks(threads)?, results.masks(&instances, threads)?);
            evaluate(sizes.0, sizes.1, &truths, &detections, threads)
        }
    };
    let scores = scores.map_err(|error| usage(options, &error))?;
    if scores.left_out > 0 {
        common.warn(&format!(
            "warning: {}: {} of the detections are not evaluated, because {MAX_DETECTIONS} of their image and category have \
             higher scores",
            options.predictions.display(),
            scores.left_out
        ));
    }
    if options.json {
        print_json(&as_json(&instances, &results, &scores, options))
    } else if options.csv {
        print(&as_csv(&instances, &scores)?)
    } else {
        print(&as_text(&instances, &scores, options))
    }
}

/// Objects and detections, of the images that are asked for.
fn read(options: &Options) -> anyhow::Result<(Instances, Results)> {
    let all = Instances::open(&options.data)?;
    let results = Results::open(&options.predictions, &all)?;
    let Some(path) = &options.images else { return Ok((all, results)) };
    let wanted = listed_images(path, &all)?;
    let some = all.clone().of_images(|image| wanted.contains(&image.id));
    let results = results.of_images(&all, &some);
    Ok((some, results))
}

/// The ids of the images that a file lists.
fn listed_images(path: &Path, instances: &Instances) -> anyhow::Result<BTreeSet<i64>> {
    let text = read_text(path)?;
    let named = instances.images().iter().filter_map(|image| Some((image.file_name.as_deref()?, image.id)));
    let named: HashMap<&str, i64> = named.collect();
    let id = |(number, line): (usize, &str)| {
        let by_id = line.parse().ok().filter(|&id| instances.image_number(id).is_some());
        by_id.or_else(|| named.get(line).copied()).ok_or_else(|| {
            let data = instances.path().display();
            Usage(format!(
                "{}: line {number}: `{line}` is neither the id nor the file name of an image of {data}",
                path.display()
            ))
        })
    };
    let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty());
    let ids: BTreeSet<i64> = lines.map(id).collect::<Result<_, _>>()?;
    match ids.is_empty() {
        true => Err(Usage(format!("{}: no image is listed: an id or a file name in each line", path.display())).into()),
        false => Ok(ids),
    }
}

/// An error of the metric, with the files it comes from.
fn usage(options: &Options, error: &CocoError) -> Usage {
    Usage(format!("{error} ({}, {})", options.data.display(), options.predictions.display()))
}

fn warn_about(instances: &Instances, results: &Results, options: &Options, common: &Common) {
    if instances.annotations().iter().any(|annotation| annotation.id == 0) {
        common.warn(&format!(
            "warning: {}: an annotation has the id 0; a detection matched to it is a false positive, as in pycocotools",
            options.data.display()
        ));
    }
    if let Some((count, id)) = results.unknown_categories() {
        common.warn(&format!(
            "warning: {}: {count} of the detections are of categories that the data do not have, such as {id}; they are \
             ignored",
            options.predictions.display()
        ));
    }
    if results.detections().is_empty() {
        common.warn(&format!("warning: {}: there is no detection to evaluate", options.predictions.display()));
    }
}

fn named(scores: &Scores) -> Map<String, Value> {
    let values = scores.values().map(|value| json!(value.unwrap_or(-1.0)));
    SCORE_NAMES.into_iter().map(str::to_owned).zip(values).collect()
}

fn classes(instances: &Instances, scores: &CocoScores) -> Vec<ClassScores> {
    let categories = instances.categories().iter().zip(&scores.categories);
    categories.map(|(category, scores)| ClassScores::of(category.id, &category.name, scores)).collect()
}

fn as_json(instances: &Instances, results: &Results, scores: &CocoScores, options: &Options) -> Value {
    let mut json = Map::new();
    json.insert("kind".to_owned(), json!(options.kind.name()));
    json.insert("images".to_owned(), json!(instances.images().len()));
    json.insert("objects".to_owned(), json!(scores.categories.iter().map(|category| category.objects).sum::<usize>()));
    json.insert("detections".to_owned(), json!(results.detections().len()));
    json.extend(named(&scores.all));
    if options.classes {
        json.insert("classes".to_owned(), json!(classes(instances, scores)));
    }
    Value::Object(json)
}

/// A row for each category, as `--json` has them; scores that are not defined are -1.
fn as_csv(instances: &Instances, scores: &CocoScores) -> anyhow::Result<String> {
    let columns: Vec<&str> = ["id", "name", "objects", "detections"].into_iter().chain(SCORE_NAMES).collect();
    let row = |class: ClassScores| {
        let values = class.scores.values().map(|value| format!("{:?}", value.unwrap_or(-1.0)));
        let head = [class.id.to_string(), class.name, class.objects.to_string(), class.detections.to_string()];
        head.into_iter().chain(values).collect::<Vec<_>>()
    };
    Csv::default().lines(&columns, classes(instances, scores).into_iter().map(row))
}

fn as_text(instances: &Instances, scores: &CocoScores, options: &Options) -> String {
    let title = format!("COCO {}", options.kind.name());
    let mut table = Table::new(1, &[&title, "IoU", "area", "detections", "score"]);
    let values = scores.all.values();
    for ((name, meaning), value) in SCORE_NAMES.into_iter().zip(MEANINGS).zip(values) {
        let [thresholds, area, detections] = meaning.map(str::to_owned);
        table.row([name.to_owned(), thresholds, area, detections, cell(value)]);
    }
    let mut text = table.to_string();
    if options.classes {
        text += &format!("\n{}", class_table(&classes(instances, scores)));
    }
    text
}

fn cell(score: Option<f64>) -> String {
    score.map_or_else(|| "-".to_owned(), |score| format!("{score:.3}"))
}
