//! Recipes that earlier versions resolved and saved: those of runs, and all that the program carries. They open and say the same.

use bessemer_train::Recipe;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

fn entries(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder);
    let entries = fs::read_dir(folder).expect("a folder");
    let mut entries: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    entries.sort();
    entries
}

/// All fields by dotted path.
fn fields(table: &Table) -> BTreeMap<String, Value> {
    let flat = table.iter().flat_map(|(name, value)| match value {
        Value::Table(section) => {
            section.iter().map(|(field, value)| (format!("{name}.{field}"), value.clone())).collect::<Vec<_>>()
        }
        value => vec![(name.clone(), value.clone())],
    });
    flat.collect()
}

/// Fields that recipes of earlier versions do not have, with the values, in TOML, that those versions computed with.
const ADDED: [(&str, &str); 15] = [
    ("data.crop_draw", "\"torch\""),
    ("data.exif", "\"ignore\""),
    ("data.resampling", "\"antialias\""),
    ("data.scaled_decode", "false"),
    ("data.spare_outputs", "0"),
    ("model.bn_eps", "0.00001"),
    ("model.bn_momentum", "0.1"),
    ("model.dropout", "0.0"),
    ("model.drop_path", "0.0"),
    ("optimizer.velocity", "\"gradients\""),
    ("schedule.warmup_lr", "0.0"),
    ("train.ema_ramp", "false"),
    ("train.means_over", "\"rank\""),
    ("train.mixup_form", "\"batch\""),
    ("train.norms_over", "\"rank\""),
];

#[test]
fn saved_recipes_open_and_say_the_same() {
    let of_runs = entries("runs").into_iter().map(|run| run.join("recipe.toml"));
    let files: Vec<PathBuf> = entries("recipes").into_iter().chain(of_runs).collect();
    assert_eq!(files.len(), 22);
    for file in files {
        let text = fs::read_to_string(&file).expect("a recipe");
        // The one value that has another name since; both are read.
        let saved = fields(&text.replace("\"past_root\"", "\"outside_sqrt\"").parse().expect("a table"));
        let opened = Recipe::load(&file.to_string_lossy(), &[]).unwrap_or_else(|error| panic!("{error}"));
        let mut opened = fields(&opened.to_table());
        for (name, value) in ADDED.iter().filter(|(name, _)| !saved.contains_key(*name)) {
            if let Some(added) = opened.remove(*name) {
                assert_eq!(added.to_string(), *value, "{}: {name}", file.display());
            }
        }
        assert_eq!(opened, saved, "{}", file.display());
    }
}

#[test]
fn recipes_of_the_program_resolve_as_before() {
    for file in entries("recipes") {
        let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
        let before = Recipe::load(&file.to_string_lossy(), &[]).expect("a recipe");
        assert_eq!(Recipe::load(&name, &[]).expect("a recipe of the program"), before, "{name}");
    }
}
