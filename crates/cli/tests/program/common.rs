//! Runs the program as a person would.

use std::path::Path;
use std::process::{Command, Output};

pub(crate) struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Runs `bessemer` with arguments separated by blanks, in `folder`.
pub(crate) fn bessemer(folder: &Path, arguments: &str) -> Ran {
    let words: Vec<&str> = arguments.split_whitespace().collect();
    ran(Command::new(env!("CARGO_BIN_EXE_bessemer")).current_dir(folder).args(words))
}

/// Runs a command to its end.
pub(crate) fn ran(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
}

impl Ran {
    /// The command ended well.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.err);
        self
    }

    /// The command ended with `code` and a last line `error: ...` in which all of `parts` occur.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        let errors: Vec<&str> = self.err.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{}", self.err);
        assert!(self.err.ends_with(&format!("{}\n", errors[0])), "{}", self.err);
        for part in parts {
            assert!(errors[0].contains(part), "{part} is missing in: {}", errors[0]);
        }
        assert!(!self.err.contains("panicked") && !self.err.contains("backtrace"), "{}", self.err);
        self
    }
}
