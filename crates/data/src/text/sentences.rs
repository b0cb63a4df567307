//! Cutting a paragraph into sentences by rules.

/// Words that a full stop abbreviates, in lower case, without the stop. A sentence seldom ends with one.
const ABBREVIATIONS: [&str; 53] = [
    "mr", "mrs", "ms", "dr", "prof", "rev", "hon", "st", "mt", "ft", "gen", "col", "maj", "capt", "lt", "sgt", "cmdr",
    "adm", "gov", "sen", "rep", "pres", "messrs", "mme", "mlle", "mgr", "no", "nos", "vol", "vols", "pp", "fig",
    "figs", "ch", "eq", "ed", "eds", "vs", "cf", "ca", "al", "approx", "e.g", "i.e", "viz", "jan", "feb", "aug",
    "sept", "oct", "nov", "dec", "op",
];

/// The sentences of a line of text, in order, without blanks around them.
///
/// A sentence ends with a full stop, question or exclamation mark or ellipsis, with what closes quotes and brackets
/// after it, before a blank and something that can begin a sentence: no small letter and no punctuation that goes on. A
/// full stop after an abbreviation or a single capital letter ends none; decimal numbers and names with stops have no
/// blank inside. Ideographic stops end a sentence without a blank.
pub fn sentences(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    let mut chars = line.char_indices().peekable();
    while let Some((at, mark)) = chars.next() {
        if !is_end_mark(mark) {
            continue;
        }
        let mut end = at + mark.len_utf8();
        while let Some((at, next)) = chars.next_if(|&(_, next)| is_end_mark(next) || is_closing(next)) {
            end = at + next.len_utf8();
        }
        if ends_sentence(&line[start..at], mark, &line[start..end], &line[end..]) {
            found.push(&line[start..end]);
            start = end;
        }
    }
    found.push(&line[start..]);
    found.into_iter().map(str::trim).filter(|sentence| !sentence.is_empty()).collect()
}

/// Whether a sentence ends with `mark`: `before` it lies the sentence so far, `whole` is that with the mark and what
/// closes after it, and `rest` comes next.
fn ends_sentence(before: &str, mark: char, whole: &str, rest: &str) -> bool {
    let next = rest.trim_start().chars().next();
    let Some(next) = next else { return true };
    if is_ideographic_stop(mark) {
        return true;
    }
    if !rest.starts_with(char::is_whitespace) || next.is_lowercase() || continues(next) {
        return false;
    }
    mark != '.' || !whole.ends_with('.') || !abbreviates(before)
}

/// Whether the last word of `before`, which a full stop follows, is one that is written with a stop.
fn abbreviates(before: &str) -> bool {
    let word = before.rsplit(|c: char| c.is_whitespace() || "([\"“‘'—–-".contains(c)).next().unwrap_or_default();
    let last_part = word.rsplit('.').next().unwrap_or_default();
    let is_initial = last_part.chars().count() == 1 && last_part.chars().all(|c| c.is_uppercase() && c != 'I');
    is_initial || ABBREVIATIONS.contains(&word.to_lowercase().as_str())
}

fn is_end_mark(c: char) -> bool {
    matches!(c, '.' | '?' | '!' | '…') || is_ideographic_stop(c)
}

fn is_ideographic_stop(c: char) -> bool {
    matches!(c, '。' | '！' | '？' | '｡')
}

fn is_closing(c: char) -> bool {
    matches!(c, '"' | '\'' | '”' | '’' | '»' | ')' | ']' | '}' | '」' | '』' | '_' | '*')
}

/// Punctuation that cannot begin a sentence.
fn continues(c: char) -> bool {
    matches!(c, ',' | ';' | ':' | ')' | ']' | '}' | '-' | '—' | '–' | '%' | '&' | '/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(expected: &[&str]) {
        assert_eq!(sentences(&expected.join(" ")), expected);
    }

    #[test]
    fn marks_end_sentences() {
        check(&["One.", "Two!", "Three?", "Four...", "Five?!", "And no end"]);
        assert_eq!(sentences("  one  "), ["one"]);
        assert_eq!(sentences(" \t "), Vec::<&str>::new());
        check(&["He lived in 1912.", "2 years later he left."]);
        check(&["It is so small .", "The two are alike ."]);
    }

    #[test]
    fn abbreviations_and_initials_do_not() {
        check(&["Mr. Darcy met Dr. Watson and J. R. R. Tolkien at St. Ives."]);
        check(&["See vol. 3, No. 5, e.g. Fig. 2.", "Then go on."]);
        check(&["The U.S. Army came.", "It left (cf. Smith)."]);
        check(&["So did I.", "Then came you."]);
    }

    #[test]
    fn numbers_and_names_with_stops_are_whole() {
        check(&["Pi is 3.14 or so.", "See example.com for v1.2.3 of it."]);
        check(&["Only .5 percent were left."]);
    }

    #[test]
    fn quotes_and_brackets_stay_with_their_sentence() {
        check(&["“Come in!”", "She sat down."]);
        check(&["\"What?\" he said.", "\"Nothing.\"", "(That was all.)", "They left."]);
        check(&["_Really?_", "Yes."]);
        check(&["“Stop!” cried he; “Who?”—“I.”"]);
    }

    #[test]
    fn ideographic_stops_need_no_blank() {
        assert_eq!(sentences("東京です。京都！「はい。」次"), ["東京です。", "京都！", "「はい。」", "次"]);
    }
}
