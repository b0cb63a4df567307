//! The 1000 classes of ImageNet's challenge, with the ids that its folders are named by and the names that people know.

mod records;
mod verify;

use std::sync::LazyLock;

pub use records::{ImageRecords, RecordsOfFolder, WrittenImages};
pub use verify::{ImageLayout, LabelledReport, verify_labelled};

/// A class of ImageNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageNetClass {
    /// WordNet id, such as `n02123045`.
    pub id: &'static str,
    /// Name, such as `tabby`.
    pub name: &'static str,
}

/// Number of the classes.
pub const IMAGENET_CLASSES: usize = 1000;

/// The classes in the order of their labels, which is that of their ids.
pub fn imagenet_classes() -> &'static [ImageNetClass] {
    static CLASSES: LazyLock<Vec<ImageNetClass>> = LazyLock::new(|| {
        let lines = include_str!("classes.tsv").lines().filter(|line| !line.starts_with('#'));
        let class = |line: &'static str| line.split_once('\t').map(|(id, name)| ImageNetClass { id, name });
        lines.filter_map(class).collect()
    });
    &CLASSES
}

/// What people call a class of a folder: for a WordNet id of ImageNet its name, else the name of the folder.
pub fn readable_class(folder: &str) -> &str {
    let classes = imagenet_classes();
    classes.binary_search_by_key(&folder, |class| class.id).map_or(folder, |found| classes[found].name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn labels_are_places_in_the_order_of_ids() {
        let classes = imagenet_classes();
        assert_eq!(classes.len(), IMAGENET_CLASSES);
        assert!(classes.is_sorted_by_key(|class| class.id));
        assert_eq!(classes.iter().map(|class| class.name).collect::<BTreeSet<_>>().len(), IMAGENET_CLASSES);
        // As torchvision's and timm's lists have them.
        let known = [(0, "n01440764", "tench"), (281, "n02123045", "tabby"), (999, "n15075141", "toilet tissue")];
        for (label, id, name) in known {
            assert_eq!(classes[label], ImageNetClass { id, name });
        }
    }

    #[test]
    fn other_folders_keep_their_names() {
        assert_eq!(readable_class("n02123045"), "tabby");
        assert_eq!((readable_class("cats"), readable_class("n99999999")), ("cats", "n99999999"));
    }
}
