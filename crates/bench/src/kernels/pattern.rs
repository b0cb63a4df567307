//! Patterns that choose kernels by name.

use std::str::FromStr;

/// Parts that a name must contain one after the other, upper and lower case being the same: `resnet50*3x3*forward`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    parts: Vec<String>,
}

impl Pattern {
    /// Whether the pattern matches a name; case is ignored.
    pub fn matches(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        let mut rest = name.as_str();
        self.parts.iter().all(|part| match rest.find(part.as_str()) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Characters that a name must contain: the more, the more special the pattern is.
    pub fn weight(&self) -> usize {
        self.parts.iter().map(String::len).sum()
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        if text.trim().is_empty() {
            return Err("a pattern must not be empty; `*` stands for every kernel".to_string());
        }
        let parts = text.split('*').map(str::to_lowercase).collect();
        Ok(Pattern { text: text.to_string(), parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_in_order() {
        let matches = |pattern: &str, name: &str| pattern.parse::<Pattern>().expect("not empty").matches(name);
        assert!(matches("conv2", "resnet50/layer1.0.conv2 3x3 forward fp32"));
        assert!(matches("ResNet50*3x3*forward", "resnet50/layer1.0.conv2 3x3 forward fp32"));
        assert!(!matches("forward*3x3", "resnet50/layer1.0.conv2 3x3 forward fp32"));
        assert!(!matches("aba*ba", "xaba") && matches("aba*ba", "xababa"), "parts do not overlap");
        assert!(matches("*", "anything"));
        assert!(" ".parse::<Pattern>().unwrap_err().contains("must not be empty"));
        assert!("a*bc".parse::<Pattern>().unwrap().weight() > "ab".parse::<Pattern>().unwrap().weight());
    }
}
