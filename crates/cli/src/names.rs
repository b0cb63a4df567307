//! Names that are mistyped.

/// `"; did you mean ...?"` if a known name is close, else nothing.
pub fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 3)
        .map_or_else(String::new, |(_, closest)| format!("; did you mean `{closest}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_names_are_proposed() {
        let known = ["resnet18", "resnet50"];
        assert_eq!(hint("resnet5", known), "; did you mean `resnet50`?");
        assert_eq!(hint("renset18", known), "; did you mean `resnet18`?");
        assert_eq!(hint("transformer", known), "");
    }
}
