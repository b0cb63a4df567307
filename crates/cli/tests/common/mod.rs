//! Runs the program as a person would.

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::path::Path;
use std::process::{Command, Output};

pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Runs `bessemer` with arguments separated by blanks, in `folder`.
pub fn bessemer(folder: &Path, arguments: &str) -> Ran {
    let words: Vec<&str> = arguments.split_whitespace().collect();
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_bessemer")).current_dir(folder).args(words).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
}

impl Ran {
    /// The command ended well.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.err);
        self
    }

    /// The command ended with `code` and a last line `error: ...` in which all of `parts` occur.
    #[track_caller]
    pub fn fails(self, code: i32, parts: &[&str]) -> Self {
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

/// Writes a safetensors file of the tensors `(name, shape)`, each element `value`.
pub fn write_weights(path: &Path, tensors: &[(String, Vec<usize>)], value: f32) {
    let data: Vec<Vec<u8>> =
        tensors.iter().map(|(_, shape)| value.to_le_bytes().repeat(shape.iter().product())).collect();
    let views = tensors
        .iter()
        .zip(&data)
        .map(|((name, shape), data)| (name.clone(), TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
    std::fs::write(path, safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap()).unwrap();
}

/// Names and shapes of ResNet-20's tensors.
pub fn resnet20() -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![("conv1.weight".to_owned(), vec![16, 3, 3, 3])];
    let norm = |tensors: &mut Vec<(String, Vec<usize>)>, name: String, channels: usize| {
        for part in ["weight", "bias", "running_mean", "running_var"] {
            tensors.push((format!("{name}.{part}"), vec![channels]));
        }
    };
    norm(&mut tensors, "bn1".to_owned(), 16);
    let mut inputs = 16;
    for (stage, channels) in [(1, 16), (2, 32), (3, 64)] {
        for block in 0..3 {
            for conv in [1, 2] {
                let name = format!("layer{stage}.{block}");
                tensors.push((format!("{name}.conv{conv}.weight"), vec![channels, inputs, 3, 3]));
                norm(&mut tensors, format!("{name}.bn{conv}"), channels);
                inputs = channels;
            }
        }
    }
    tensors.push(("linear.weight".to_owned(), vec![10, 64]));
    tensors.push(("linear.bias".to_owned(), vec![10]));
    tensors
}
