//! Names that are mistyped.

/// The known name that was probably meant: one that starts with `name`, or else the closest by edit distance; `None` if
/// none is close.
pub fn closest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |candidate: &str| match candidate.strip_prefix(name) {
        Some(_) if name.len() >= LEAST_PREFIX => 0,
        _ => strsim::damerau_levenshtein(name, candidate),
    };
    let nearest = known.into_iter().map(|candidate| (distance(candidate), candidate)).min();
    nearest.filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 3).map(|(_, closest)| closest)
}

/// Letters from which on the start of a name is distinctive.
const LEAST_PREFIX: usize = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_names_are_proposed() {
        let known = ["resnet18", "resnet50", "resnet20-cifar"];
        assert_eq!(closest("resnet5", known), Some("resnet50"));
        assert_eq!(closest("renset18", known), Some("resnet18"));
        assert_eq!(closest("resnet20", known), Some("resnet20-cifar"));
        assert_eq!(closest("transformer", known), None);
    }
}
