//! What a person should know of a device that goes on.

use super::locked;
use std::collections::BTreeSet;
use std::sync::Mutex;

/// Warnings of a device, each text once.
#[derive(Default)]
pub(super) struct Warnings(Mutex<Said>);

#[derive(Default)]
struct Said {
    all: BTreeSet<String>,
    /// Those that nobody took yet.
    new: Vec<String>,
}

impl Warnings {
    pub(super) fn add(&self, text: String) {
        let mut said = locked(&self.0);
        if said.all.insert(text.clone()) {
            said.new.push(text);
        }
    }

    /// Those since the last call.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut locked(&self.0).new)
    }
}
