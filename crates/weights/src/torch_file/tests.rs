//! Files that PyTorch wrote give their tensors; hostile and damaged ones give one error and nothing else.

use super::*;
use crate::testing::load_weights;
use crate::{Dtype, WeightOptions, read_safetensors};
use proptest::prelude::*;
use std::fs;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than any of these small files takes on a busy machine.
const LONG: Duration = Duration::from_secs(10);

/// A file that `peers/pytorch/make_torch_file_fixtures.py` wrote.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/torch_files").join(name)
}

fn read(name: &str) -> Result<Vec<NamedTensor<'static>>, FileError> {
    load_weights(&fixture(name), WeightOptions::default())
}

fn sorted(mut tensors: Vec<NamedTensor<'static>>) -> Vec<NamedTensor<'static>> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

#[test]
fn tensors_are_those_that_pytorch_saved() {
    let expected = sorted(read_safetensors(&fixture("plain.safetensors")).unwrap());
    assert_eq!(expected.len(), 18);
    for file in ["plain.pth", "protocol4.pth", "protocol5.pth"] {
        assert_eq!(sorted(read(file).unwrap()), expected, "{file}");
    }
    let names: Vec<String> = read("plain.pth").unwrap().into_iter().map(|tensor| tensor.name).collect();
    assert_eq!(names[..3], ["f32", "f16", "bf16"], "in the order of the state dict");
}

#[test]
fn state_dicts_are_found_among_other_entries() {
    let expected = sorted(read_safetensors(&fixture("network.safetensors")).unwrap());
    for file in ["state_dict.pth", "model.pth", "several.pth"] {
        assert_eq!(sorted(read(file).unwrap()), expected, "{file}");
    }
    assert_eq!(state_dict_choice(&fixture("state_dict.pth")).unwrap(), None);
    assert_eq!(state_dict_choice(&fixture("plain.safetensors")).unwrap(), None);
    assert_eq!(state_dict_choice(Path::new("no/such/file.pth")).unwrap(), None);
    let choice = state_dict_choice(&fixture("several.pth")).unwrap().unwrap();
    assert_eq!((choice.key, choice.others.as_slice()), ("state_dict_ema", ["state_dict", "model"].as_slice()));
    let said = choice.to_string();
    assert!(
        said.ends_with("several.pth: `state_dict_ema`, the averaged weights (not `state_dict`, `model`)"),
        "{said}"
    );
}

#[test]
fn averages_are_read_where_there_are_some() {
    let averaged = WeightOptions { ema: true, ..WeightOptions::default() };
    let expected = sorted(read_safetensors(&fixture("network.safetensors")).unwrap());
    assert_eq!(sorted(load_weights(&fixture("several.pth"), averaged).unwrap()), expected);
    for file in ["state_dict.pth", "plain.pth", "plain.safetensors"] {
        let error = load_weights(&fixture(file), averaged).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains("averaged weights"), "{error}");
    }
}

#[test]
fn a_folder_of_hugging_face_may_have_a_pytorch_file() {
    let folder = TempDir::new().unwrap();
    fs::copy(fixture("plain.pth"), folder.path().join("pytorch_model.bin")).unwrap();
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    let read = |options| load_weights(folder.path(), options).unwrap();
    assert_eq!(read(WeightOptions::default()).len(), 18);
    fs::copy(fixture("network.safetensors"), folder.path().join("model.safetensors")).unwrap();
    assert_eq!(read(WeightOptions::default()).len(), 7, "safetensors come first");
    let floats =
        load_weights(&fixture("plain.pth"), WeightOptions { to_f32: true, ..WeightOptions::default() }).unwrap();
    let dtype = |name: &str| floats.iter().find(|tensor| tensor.name == name).unwrap().dtype;
    assert_eq!(["f16", "bf16", "f64", "i64"].map(dtype), [Dtype::F32, Dtype::F32, Dtype::F32, Dtype::I64]);
}

#[test]
fn the_content_decides_and_then_the_name() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let copy = |from: &str, to: &str| {
        fs::copy(fixture(from), path(to)).unwrap();
        load_weights(&path(to), WeightOptions::default()).unwrap().len()
    };
    assert_eq!(copy("plain.pth", "weights"), 18);
    assert_eq!(copy("plain.safetensors", "weights.bin"), 18);
}

#[test]
fn bad_files_are_refused_with_a_reason() {
    let cases = [
        ("command.pth", "`posix.system`, which is not allowed"),
        ("unknown_class.pth", "`__main__.Unknown`, which is not allowed"),
        ("builtin.pth", "`builtins.eval`, which is not allowed"),
        ("getattr.pth", "`torch.load`, which is not allowed"),
        ("instance.pth", "opcode 0x69 is not allowed"),
        ("extension.pth", "opcode 0x82 is not allowed"),
        ("legacy.pth", "before 1.6, which is not read; convert it"),
        ("script.pt", "TorchScript"),
        ("text.pth", "neither a safetensors file nor"),
        ("empty.pth", "neither a safetensors file nor"),
        ("truncated.pth", "not a whole zip archive"),
        ("compressed.pth", "is compressed"),
        ("bomb.pth", "is compressed"),
        ("storage_lies.pth", "tensor `w`: its storage has 16 bytes in the archive and 4398046511104 in the pickle"),
        ("storage_small.pth", "16 bytes in the archive and 12 in the pickle"),
        ("storage_negative.pth", "impossible size (-4 elements)"),
        ("storage_missing.pth", "entry `x/data/9`: is missing"),
        ("storage_path.pth", "entry `x/data/../data.pkl`: is missing"),
        ("offset_beyond.pth", "lead beyond its storage of 4 elements"),
        ("offset_negative.pth", "its offset is -1"),
        ("stride_beyond.pth", "lead beyond its storage of 4 elements"),
        ("stride_negative.pth", "its strides are no tuple"),
        ("stride_overflow.pth", "lead beyond its storage"),
        ("shape_overflow.pth", "is impossible"),
        ("shape_broadcast.pth", "are more than the file has"),
        ("shape_of_text.pth", "its shape is no tuple"),
        ("dimensions.pth", "its shape is no tuple of at most 64 sizes"),
        ("strides_missing.pth", "2 dimensions and 1 strides"),
        ("complex.pth", "`torch.ComplexFloatStorage`, which is not allowed"),
        ("shared_by_many.pth", "more than 4 tensors share"),
        ("repeated_name.pth", "tensor `w`: it appears twice"),
        ("deep.pth", "holds no dict"),
        ("cycle.pth", "holds no tensors by name"),
        ("memo_missing.pth", "there is no memo 4294967295"),
        ("no_end.pth", "ends inside an opcode"),
        ("long_text.pth", "ends inside an opcode"),
        ("no_tensors.pth", "it has `epoch`, `optimizer`"),
        ("list.pth", "holds no dict"),
        ("no_pickle.pth", "without the FOLDER/data.pkl"),
        ("big_endian.pth", "`x/byteorder`: `big`, only little is read"),
        ("version.pth", "`x/version`: `11`, 1 to 10 are read"),
        ("checksum.pth", "entry `x/data/0`: "),
    ];
    for (file, reason) in cases {
        let start = Instant::now();
        let error = read(file).err().unwrap_or_else(|| panic!("{file} is read")).to_string();
        assert!(error.contains(file) && error.contains(reason), "{file}: {error}");
        assert!(start.elapsed() < LONG, "{file}");
    }
    assert!(!Path::new("torch_file_command_was_run").exists(), "a command of a file was run");
    let good =
        ["plain", "protocol4", "protocol5", "state_dict", "model", "several", "resnet20", "well_formed", "memo_far"];
    let files = fs::read_dir(fixture("")).unwrap().map(|file| file.unwrap().path());
    let untested = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_good = name.ends_with(".safetensors") || good.contains(&name.trim_end_matches(".pth"));
        !is_good && !cases.iter().any(|(file, _)| *file == name)
    };
    assert_eq!(files.filter(untested).collect::<Vec<_>>(), Vec::<PathBuf>::new());
    assert_eq!(read("well_formed.pth").unwrap(), read("memo_far.pth").unwrap());
}

#[test]
fn pickles_may_be_deep_but_not_endless() {
    let deep = [b"\x80\x02".to_vec(), b"(".repeat(400_000), b"t".repeat(400_000), b".".to_vec()].concat();
    assert_eq!(unpickle(&deep).unwrap().objects.len(), 400_000);
    let endless = [b"\x80\x02".to_vec(), b"]".repeat(3_000_000), b".".to_vec()].concat();
    assert!(unpickle(&endless).unwrap_err().contains("opcodes"));
    assert!(unpickle(b"\x80\x02]r\xff\xff\xff\xff.").is_ok(), "a memo is no vector");
}

#[test]
fn integers_have_any_length() {
    let long = |bytes: &[u8]| {
        let pickle = [b"\x80\x02\x8a".as_slice(), &[bytes.len() as u8], bytes, b"."].concat();
        unpickle(&pickle).map(|pickle| format!("{:?}", pickle.root)).unwrap()
    };
    assert_eq!(long(&[]), "Int(0)");
    assert_eq!(long(&[0xff]), "Int(-1)");
    assert_eq!(long(&[0, 1]), "Int(256)");
    assert_eq!(long(&i64::MIN.to_le_bytes()), format!("Int({})", i64::MIN));
    assert_eq!(long(&[1; 9]), "Plain");
}

#[test]
fn every_prefix_of_a_file_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("cut.pth");
    let whole = fs::read(fixture("well_formed.pth")).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let error = load_weights(&path, WeightOptions::default()).unwrap_err().to_string();
        assert!(error.contains("cut.pth"), "{error}");
    }
}

/// Changes bytes: each position and new value is taken modulo the length and 256.
fn altered(mut bytes: Vec<u8>, changes: &[(usize, u8)]) -> Vec<u8> {
    for &(position, value) in changes {
        let position = position % bytes.len();
        bytes[position] = value;
    }
    bytes
}

fn changes() -> impl Strategy<Value = Vec<(usize, u8)>> {
    prop::collection::vec((any::<usize>(), any::<u8>()), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn altered_files_never_panic_nor_run_long(
        file in prop::sample::select(vec!["plain.pth", "well_formed.pth", "several.pth"]),
        changes in changes(),
    ) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("altered.pth");
        fs::write(&path, altered(fs::read(fixture(file)).unwrap(), &changes)).unwrap();
        let start = Instant::now();
        if let Ok(tensors) = load_weights(&path, WeightOptions::default()) {
            let bytes: usize = tensors.iter().map(|tensor| tensor.data.len()).sum();
            prop_assert!(bytes < 10_000, "{bytes}");
        }
        prop_assert!(start.elapsed() < LONG);
    }

    /// The checksums of archives hide most changes of pickles; here nothing does.
    #[test]
    fn altered_pickles_never_panic_nor_run_long(changes in changes()) {
        let original = Archive::open(&fixture("plain.pth")).unwrap().pickle().unwrap();
        let bytes = altered(original, &changes);
        let start = Instant::now();
        if let Ok(pickle) = unpickle(&bytes)
            && let Ok((_, tensors)) = choose(&pickle, false)
        {
            for (_, tensor) in tensors {
                if let Ok(view) = View::new(&pickle, tensor)
                    && view.storage_bytes < 10_000
                    && view.bytes < 100_000
                {
                    let dense = view.gather(&mut vec![0; view.storage_bytes as usize], true);
                    prop_assert_eq!(dense.len(), view.bytes);
                }
            }
        }
        prop_assert!(start.elapsed() < LONG);
    }
}
