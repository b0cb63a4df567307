//! Names that are mistyped.

/// `"; did you mean ...?"` if a known name begins so or is close, else nothing.
pub(crate) fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let distance = |candidate: &str| match candidate.strip_prefix(name) {
        Some(_) if name.len() >= LEAST_PREFIX => 0,
        _ => strsim::damerau_levenshtein(name, candidate),
    };
    known
        .into_iter()
        .map(|candidate| (distance(candidate), candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 3)
        .map_or_else(String::new, |(_, closest)| format!("; did you mean `{closest}`?"))
}

/// Letters that make the beginning of a name telling.
const LEAST_PREFIX: usize = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_names_are_proposed() {
        let known = ["resnet18", "resnet50", "resnet20-cifar"];
        assert_eq!(hint("resnet5", known), "; did you mean `resnet50`?");
        assert_eq!(hint("renset18", known), "; did you mean `resnet18`?");
        assert_eq!(hint("resnet20", known), "; did you mean `resnet20-cifar`?");
        assert_eq!(hint("transformer", known), "");
    }
}
