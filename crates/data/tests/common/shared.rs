//! The sample data beside the checkout.

use std::io::Write;
use std::path::{Path, PathBuf};

/// A file or folder of the sample data beside the checkout, if it is there.
pub(crate) fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name);
    let found = path.exists().then_some(path);
    if found.is_none() {
        let line = format!("skipped: there is no ../shared/data/{name} beside the checkout\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    found
}
