//! What documents say of the program: every command that they show is one that it accepts, and lists are its own.

#[path = "../tests/program/shown.rs"]
mod shown;

use crate::args::{Cli, Command};
use crate::commands::train;
use crate::failure;
use bessemer_ir::passes::pass_names;
use clap::{CommandFactory, Parser};
use shown::{Shown, commands, of_program, pipeline};
use std::fs;
use std::path::{Path, PathBuf};

/// What is wrong with a command, or with the recipe that it trains by, in one line.
fn problem(words: &[String]) -> Option<String> {
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => return Some(failure::command_line(&error.render().to_string())),
    };
    match &cli.command {
        // The run to resume, and recipes in files, are the reader's own.
        Command::Train(options)
            if options.resume.is_none() && options.recipe.as_ref().is_none_or(|r| !r.contains('.')) =>
        {
            train::recipe(options, &cli.common).err().map(|error| failure::one_line(&error))
        }
        _ => None,
    }
}

/// Fails with all commands of a document that the program refuses.
#[track_caller]
fn check(name: &str, shown: &[Shown]) {
    let problem = |shown: &Shown| {
        problem(&shown.words).map(|problem| format!("{name}:{}: `{}`: {problem}", shown.line, shown.words.join(" ")))
    };
    let problems: Vec<String> = shown.iter().filter_map(problem).collect();
    assert!(problems.is_empty(), "commands that the program refuses:\n{}", problems.join("\n"));
}

/// The README and the pages beside it.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = fs::read_dir(root.join("docs")).expect("the pages");
    let mut documents: Vec<PathBuf> = pages.map(|entry| entry.expect("a page").path()).collect();
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents.sort();
    documents.insert(0, root.join("README.md"));
    documents
}

#[test]
fn commands_of_documents_are_accepted() {
    let mut count = 0;
    for path in documents() {
        let shown = commands(&fs::read_to_string(&path).expect("a page"));
        let name = path.file_name().expect("a file").to_string_lossy();
        check(&name, &shown);
        count += shown.len();
    }
    assert!(count > 50, "{count} commands were found in all documents");
}

#[test]
fn the_readme_tests_by_the_command_of_continuous_integration() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let [ci, readme] = [".ci/run", "README.md"].map(|name| fs::read_to_string(root.join(name)).expect(name));
    let tests = ci.lines().find(|line| line.starts_with("cargo test ")).expect("a line that runs the tests");
    let is_shown = readme.lines().any(|line| line.trim_start().split("  ").next() == Some(tests));
    assert!(is_shown, "README.md does not show `{tests}`");
}

/// The planner of memory works on the graph that the last pass leaves.
#[test]
fn the_table_of_passes_is_that_of_the_compiler() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/architecture.md");
    let text = fs::read_to_string(path).expect("a page");
    let (_, section) = text.split_once("\n## Passes\n").expect("a section on passes");
    let section = section.split("\n## ").next().expect("the text of the section");
    let names: Vec<&str> =
        section.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0)).collect();
    assert_eq!(names, pass_names().chain(["memory"]).collect::<Vec<_>>());
}

#[test]
fn examples_of_help_are_accepted() {
    let mut commands_with_help = vec![Cli::command()];
    let mut count = 0;
    while let Some(command) = commands_with_help.pop() {
        let examples = command.get_after_help().map(|help| help.to_string()).unwrap_or_default();
        let shown: Vec<Shown> = examples
            .lines()
            .enumerate()
            .flat_map(|(index, line)| pipeline(line.trim()).into_iter().map(move |words| (index, words)))
            .filter_map(|(index, words)| Some(Shown { line: index + 1, words: of_program(words)? }))
            .collect();
        check(&format!("help of {}", command.get_name()), &shown);
        count += shown.len();
        commands_with_help.extend(command.get_subcommands().cloned());
    }
    assert!(count > 40, "{count} examples were found");
}

#[test]
fn commands_are_found_in_code_alone() {
    let markdown = "\
Use `bessemer fly`, then
bessemer fly too.

    cargo build
    bessemer models resnet50                 # one of them
    bessemer train resnet50 --data DATA      recipe resnet50-90e
    echo 'a  b | c' | bessemer data tokenize --vocab \"my vocab.txt\"
    BESSEMER_PEERS=x bessemer peers list

```sh
bessemer eval resnet50 \\
  --weights w --data d
cargo run --release -- quickstart
cargo run --release -p other --example plans -- DIR
```
";
    let words = |text: &str| text.split(' ').map(|word| word.replace('_', " ")).collect();
    let shown = |line, text| Shown { line, words: words(text) };
    let expected = [
        shown(5, "bessemer models resnet50"),
        shown(6, "bessemer train resnet50 --data DATA"),
        shown(7, "bessemer data tokenize --vocab my_vocab.txt"),
        shown(8, "bessemer peers list"),
        shown(11, "bessemer eval resnet50 --weights w --data d"),
        shown(13, "bessemer quickstart"),
    ];
    assert_eq!(commands(markdown), expected);
}

#[test]
fn refused_commands_are_reported_with_their_place() {
    let refusal = |markdown: &str| {
        let failure = std::panic::catch_unwind(|| check("page.md", &commands(markdown))).unwrap_err();
        failure.downcast_ref::<String>().expect("a message").clone()
    };
    let unknown = refusal("text\n\n    bessemer models --fast\n");
    assert!(unknown.contains("page.md:3: `bessemer models --fast`") && unknown.contains("'--fast'"), "{unknown}");
    let model = refusal("    bessemer train resnet5 --data DATA\n");
    assert!(model.contains("page.md:1:") && model.contains("did you mean `resnet50`?"), "{model}");
    let recipe = refusal("    bessemer train resnet50 --data DATA --recipe resnet50-9\n");
    assert!(recipe.contains("resnet50-9"), "{recipe}");
}
