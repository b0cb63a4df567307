//! Slurm's short forms: lists of nodes such as `a[01-03,7],b`, and of tasks on each node such as `4(x2),3`.

use crate::CommError;

/// Most names that one list may stand for.
const MAX_NODES: usize = 65_536;

/// All names of a node list, in its order: `a[01-03,7],b` is `a01 a02 a03 a7 b`. A name may hold several brackets.
///
/// # Errors
/// Brackets that do not match or are empty, bounds that are not numbers or descend, an empty name, or more than 65536 names.
pub fn expand(list: &str) -> Result<Vec<String>, CommError> {
    let fail = |problem: String| CommError::NodeList { list: list.to_owned(), problem };
    let mut names = Vec::new();
    for pattern in split_outside_brackets(list).map_err(fail)? {
        if pattern.is_empty() {
            return Err(fail("a name is empty".to_owned()));
        }
        names.extend(expand_pattern(pattern).map_err(fail)?);
        if names.len() > MAX_NODES {
            return Err(fail(format!("more than {MAX_NODES} names")));
        }
    }
    Ok(names)
}

/// Tasks on node `node` (from 0) by a list such as `4(x2),3`; `None` if the list is malformed or shorter.
pub(super) fn tasks_on_node(list: &str, node: usize) -> Option<usize> {
    let mut first = 0_usize;
    for entry in list.split(',') {
        let (tasks, nodes) = match entry.split_once("(x") {
            Some((tasks, rest)) => (tasks, rest.strip_suffix(')')?.parse().ok()?),
            None => (entry, 1),
        };
        first = first.checked_add(nodes)?;
        if node < first {
            return tasks.parse().ok();
        }
    }
    None
}

/// Parts between the commas that stand outside of brackets.
fn split_outside_brackets(list: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, character) in list.char_indices() {
        match (character, inside) {
            ('[', false) => inside = true,
            (']', true) => inside = false,
            ('[', true) | (']', false) => return Err(format!("`{character}` at character {at} has no partner")),
            (',', false) => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err("`[` is not closed".to_owned());
    }
    parts.push(&list[start..]);
    Ok(parts)
}

/// Names of one pattern, its first bracket varying slowest.
fn expand_pattern(pattern: &str) -> Result<Vec<String>, String> {
    let Some((prefix, rest)) = pattern.split_once('[') else {
        return Ok(vec![pattern.to_owned()]);
    };
    let (ranges, suffix) = rest.split_once(']').ok_or("`[` is not closed")?;
    let suffixes = expand_pattern(suffix)?;
    let mut names = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (low, high) = (number(first)?, number(last)?);
        if low > high {
            return Err(format!("range `{range}` descends"));
        }
        if (high - low).saturating_add(1).saturating_mul(suffixes.len() as u64) > MAX_NODES as u64 {
            return Err(format!("more than {MAX_NODES} names"));
        }
        for value in low..=high {
            for end in &suffixes {
                names.push(format!("{prefix}{value:0width$}{end}", width = first.len()));
            }
        }
        if names.len() > MAX_NODES {
            return Err(format!("more than {MAX_NODES} names"));
        }
    }
    Ok(names)
}

fn number(text: &str) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or_else(|| format!("`{text}` is not a number"))
}
