//! The commands that documents show.

/// A command line of a document.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Number of the line in the document, from 1.
    pub line: usize,
    /// The words from `bessemer` on.
    pub words: Vec<String>,
}

/// The commands of the program in the code blocks of a Markdown document, fenced or indented by four blanks. Two blanks, or
/// `#`, begin a remark; a backslash at the end continues a line.
pub(crate) fn commands(markdown: &str) -> Vec<Shown> {
    let mut shown = Vec::new();
    let mut is_fenced = false;
    let mut lines = markdown.lines().enumerate();
    while let Some((index, text)) = lines.next() {
        if text.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
            continue;
        }
        if !is_fenced && !text.starts_with("    ") {
            continue;
        }
        let mut command = text.trim().to_owned();
        while let Some(start) = command.strip_suffix('\\') {
            let rest = lines.next().map_or("", |(_, text)| text.trim());
            command = format!("{}{}{rest}", start.trim_end(), if rest.is_empty() { "" } else { " " });
        }
        for words in pipeline(&command) {
            if let Some(words) = of_program(words) {
                shown.push(Shown { line: index + 1, words });
            }
        }
    }
    shown
}

/// The commands of a line of shell, each as its words; quotes are removed, redirections at the end and a remark left out.
pub(crate) fn pipeline(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut last = ' ';
    for character in line.chars() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, ' ') if last == ' ' => break,
            (None, '#' | '<' | '>') if last == ' ' => break,
            (None, ' ' | '|') => {
                commands.last_mut().expect("one at least").extend(word.take());
                if character == '|' {
                    commands.push(Vec::new());
                }
            }
            _ => word.get_or_insert_default().push(character),
        }
        last = if quote.is_some() { '\'' } else { character };
    }
    commands.last_mut().expect("one at least").extend(word);
    commands
}

/// The words from `bessemer` on, if that is what the command runs: by its name, or from the sources.
pub(crate) fn of_program(words: Vec<String>) -> Option<Vec<String>> {
    let name = words.iter().position(|word| !word.contains('='))?;
    let words = &words[name..];
    if words[0] == "bessemer" {
        return Some(words.to_vec());
    }
    let own = words.iter().position(|word| word == "--")?;
    let runs = words[0] == "cargo" && words[1] == "run" && !words[..own].iter().any(|word| word == "--example");
    runs.then(|| std::iter::once("bessemer".to_owned()).chain(words[own + 1..].iter().cloned()).collect())
}
