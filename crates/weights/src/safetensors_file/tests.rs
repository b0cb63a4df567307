//! Whole files are read as the safetensors library reads them; hostile and damaged ones give one error and nothing else.

use super::*;
use crate::WeightOptions;
use crate::testing::load_weights;
use proptest::prelude::*;
use safetensors::Dtype;
use std::fs;
use tempfile::TempDir;

#[test]
fn a_header_may_be_as_long_as_other_files_begin() {
    let head = [0x08, 0x08, 0x12, 0, 0, 0, 0, 0];
    assert_eq!(read_header_length(&mut head.as_slice(), 1 << 21), Ok(0x12_0808));
    let error = read_header_length(&mut head.as_slice(), 1 << 20).unwrap_err();
    assert!(error.starts_with("that is an ONNX file"), "{error}");
    assert!(read_header_length(&mut [0xff; 8].as_slice(), 1 << 20).unwrap_err().contains("at most"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_tensors(bytes.as_slice(), bytes.len() as u64, Path::new("x"));
    }

    #[test]
    fn any_header_is_read_without_panic(
        tensors in prop::collection::vec((
            "[a-c]{1,2}",
            prop::sample::select(vec!["F32", "F16", "F4", "BOOL", "XX", "f32"]),
            prop::collection::vec(prop_oneof![0_u64..5, Just(u64::MAX), Just(1 << 62)], 0..4),
            prop_oneof![0_u64..40, any::<u64>()],
            prop_oneof![0_u64..40, any::<u64>()],
        ), 0..4),
        data in prop::collection::vec(any::<u8>(), 0..40),
        lie in prop_oneof![3 => Just(0_i64), 1 => -9_i64..9, 1 => any::<i64>()],
    ) {
        let entries: Vec<String> = tensors.iter().map(|(name, dtype, shape, start, end)| {
            format!("\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}")
        }).collect();
        let header = format!("{{{}}}", entries.join(","));
        let length = (header.len() as u64).wrapping_add_signed(lie);
        let bytes = [&length.to_le_bytes(), header.as_bytes(), &data].concat();
        if let Ok(read) = read_tensors(bytes.as_slice(), bytes.len() as u64, Path::new("x")) {
            prop_assert_eq!(read.iter().map(|t| t.data.len()).sum::<usize>(), data.len());
            prop_assert_eq!(lie, 0);
        }
    }
}

fn file_of(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

fn read_error(bytes: &[u8]) -> String {
    read_tensors(bytes, bytes.len() as u64, Path::new("some/w.safetensors")).unwrap_err().to_string()
}

#[test]
fn hostile_files_are_refused_by_name() {
    let w = |shape: &str, offsets: &str| format!(r#""w":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}"#);
    let v = r#""v":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}"#;
    let good = w("[1]", "[0,4]");
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![1, 2], "too few"),
        (u64::MAX.to_le_bytes().to_vec(), "the header claims 18446744073709551615 bytes, at most 0"),
        (file_of("{not json", &[]), "header is not valid"),
        (file_of("[]", &[]), "header is not valid"),
        (file_of(&format!("{{{good},{good}}}"), &[0; 4]), "tensor `w` appears twice"),
        (file_of(&format!("{{{}}}", good.replace("F32", "Q7")), &[0; 4]), "tensor `w`: unknown variant `Q7`"),
        (file_of(&format!("{{{}}}", w("[-1]", "[0,4]")), &[0; 4]), "tensor `w`: invalid value: integer `-1`"),
        (file_of(&format!("{{{good},{v}}}"), &[0; 6]), "tensor `v`: offsets [2, 6) overlap the tensor before"),
        (file_of(&format!("{{{}}}", w("[1]", "[4,8]")), &[0; 8]), "tensor `w`: offsets [4, 8) leave a gap"),
        (file_of(&format!("{{{}}}", w("[1]", "[0,4]")), &[0; 3]), "do not lie within the 3 bytes"),
        (file_of(&format!("{{{}}}", w("[2]", "[0,4]")), &[0; 4]), "needs 8 bytes, the offsets give 4"),
        (file_of(&format!("{{{}}}", w("[4611686018427387904,4]", "[0,4]")), &[0; 4]), "impossible number of bytes"),
        (file_of(&format!("{{{good}}}"), &[0; 5]), "the tensors take 4 bytes, the file holds 5"),
    ];
    for (bytes, expected) in cases {
        let text = read_error(&bytes);
        assert!(text.starts_with("some/w.safetensors: ") && text.contains(expected), "{text}\nexpected {expected}");
    }
    read_error(&file_of(&format!(r#"{{"w":{{"x":{}"#, "[".repeat(100_000)), &[]));
    let cut = file_of(&format!("{{{good}}}"), &[0; 2]);
    let error = read_tensors(cut.as_slice(), cut.len() as u64 + 2, Path::new("w")).unwrap_err();
    assert!(matches!(error, FileError::Tensor { tensor, .. } if tensor == "w"));
}

#[test]
fn agrees_with_the_safetensors_library() {
    let half = NamedTensor::new("half", Dtype::F16, [3], vec![1; 6]).unwrap();
    let values: Vec<f32> = (0..600).map(|i| (i as f32).sin()).collect();
    let full = NamedTensor::from_f32("fc.weight", [600], &values).unwrap();
    let tensors = [half, full, NamedTensor::from_f32("empty", [0, 4], &[]).unwrap()];
    let mut bytes = Vec::new();
    write_tensors(&tensors, None, &mut bytes).unwrap();
    let library = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for tensor in &tensors {
        let view = library.tensor(&tensor.name).unwrap();
        assert_eq!((view.dtype(), view.shape(), view.data()), (tensor.dtype, &*tensor.shape, &*tensor.data));
    }

    let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
    let theirs = safetensors::serialize(library.tensors(), metadata).unwrap();
    let mut read = read_tensors(theirs.as_slice(), theirs.len() as u64, Path::new("x")).unwrap();
    read.sort_by_key(|t| tensors.iter().position(|other| other.name == t.name));
    assert_eq!(read, tensors);
}

#[test]
fn writing_refuses_a_name_used_twice() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("w.safetensors");
    let tensor = NamedTensor::from_f32("w", [1], &[0.0]).unwrap();
    let error = write_safetensors(&path, &[tensor.clone(), tensor.clone()]).unwrap_err().to_string();
    assert!(error.contains("`w` is taken"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    write_safetensors(&path, std::slice::from_ref(&tensor)).unwrap();
    assert_eq!(read_safetensors(&path).unwrap(), [tensor]);
}

#[test]
fn weights_are_converted_and_checked_on_request() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("w.safetensors");
    let half = NamedTensor::new("half", Dtype::BF16, [2], vec![0x80, 0x3f, 0x80, 0x7f]).unwrap();
    let count = NamedTensor::new("num_batches_tracked", Dtype::I64, [], vec![0; 8]).unwrap();
    write_safetensors(&path, &[half, count]).unwrap();
    let read = load_weights(&path, WeightOptions { to_f32: true, ..Default::default() }).unwrap();
    let half = read.iter().find(|t| t.name == "half").unwrap();
    assert_eq!(half.dtype, Dtype::F32);
    assert_eq!(half.to_f32().unwrap(), [1.0, f32::INFINITY]);

    let error = load_weights(&path, WeightOptions { reject_non_finite: true, ..Default::default() }).unwrap_err();
    assert!(error.to_string().ends_with("w.safetensors: tensor `half`: element 1 is not finite"), "{error}");
}
