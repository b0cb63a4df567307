//! Checkpoints that TensorFlow wrote give their tensors; hostile and damaged ones give one error and nothing else.

use super::proto::{
    BundleHeaderProto, ObjectReference, SerializedTensor, TensorShapeProto, TensorSliceProto, TrackableObject,
    VersionDef,
};
use super::writer::{KeyValues, block, entry, header, index, shape, table, varint, write};
use super::*;
use crate::testing::load_weights;
use crate::{WeightOptions, read_weights};
use half::{bf16, f16};
use proptest::prelude::*;
use tempfile::TempDir;

/// A file that `peers/tensorflow/make_checkpoint_fixtures.py` wrote.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tensorflow_files").join(name)
}

fn load(path: &Path) -> Result<Vec<NamedTensor<'static>>, FileError> {
    load_weights(path, WeightOptions::default())
}

fn load_averages(path: &Path) -> Result<Vec<NamedTensor<'static>>, FileError> {
    load_weights(path, WeightOptions { ema: true, ..WeightOptions::default() })
}

fn sorted(mut tensors: Vec<NamedTensor<'static>>) -> Vec<NamedTensor<'static>> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

fn tensor(name: &str, dtype: Dtype, shape: &[usize], data: Vec<u8>) -> NamedTensor<'static> {
    NamedTensor::new(name, dtype, shape, data).unwrap()
}

fn floats(name: &str, shape: &[usize], values: &[f32]) -> NamedTensor<'static> {
    tensor(name, Dtype::F32, shape, values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

/// Elements of the fixtures by their place in the file.
fn half_steps(places: &[u8], more: f32) -> Vec<f32> {
    places.iter().map(|&place| (f32::from(place) - 3.0) / 2.0 + more).collect()
}

const KERNEL: &str = "conv1.weight";
const VARIANCE: &str = "bn1.running_var";

/// The layers of the fixtures under the names and in the layouts of here; the first two are averages with `more` on them.
fn layers(more: f32) -> Vec<NamedTensor<'static>> {
    let of_kernel = [0, 12, 4, 16, 8, 20, 1, 13, 5, 17, 9, 21, 2, 14, 6, 18, 10, 22, 3, 15, 7, 19, 11, 23];
    let of_depthwise = [0, 4, 8, 12, 16, 20, 1, 5, 9, 13, 17, 21, 2, 6, 10, 14, 18, 22, 3, 7, 11, 15, 19, 23];
    vec![
        floats(KERNEL, &[4, 3, 1, 2], &half_steps(&of_kernel, more)),
        floats(VARIANCE, &[4], &half_steps(&[0, 1, 2, 3], more)),
        floats("fc.weight", &[3, 2], &half_steps(&[0, 3, 1, 4, 2, 5], 0.0)),
        floats("blocks.0.0.conv_dw.weight", &[4, 1, 2, 3], &half_steps(&of_depthwise, 0.0)),
        floats("other/kernel", &[2, 3], &half_steps(&[0, 1, 2, 3, 4, 5], 0.0)),
    ]
}

fn types() -> Vec<NamedTensor<'static>> {
    let values = half_steps(&[0, 1, 2, 3, 4], 0.0);
    let bytes = |of: &dyn Fn(f32) -> Vec<u8>| values.iter().flat_map(|&value| of(value)).collect();
    let counts = |width: usize| (0..5_u64).flat_map(|count| count.to_le_bytes()[..width].to_vec()).collect();
    vec![
        tensor("types/float32", Dtype::F32, &[5], bytes(&|value| value.to_le_bytes().to_vec())),
        tensor("types/float64", Dtype::F64, &[5], bytes(&|value| f64::from(value).to_le_bytes().to_vec())),
        tensor("types/float16", Dtype::F16, &[5], bytes(&|value| f16::from_f32(value).to_le_bytes().to_vec())),
        tensor("types/bfloat16", Dtype::BF16, &[5], bytes(&|value| bf16::from_f32(value).to_le_bytes().to_vec())),
        tensor("types/int64", Dtype::I64, &[5], counts(8)),
        tensor("types/int32", Dtype::I32, &[5], counts(4)),
        tensor("types/int16", Dtype::I16, &[5], counts(2)),
        tensor("types/int8", Dtype::I8, &[5], counts(1)),
        tensor("types/uint64", Dtype::U64, &[5], counts(8)),
        tensor("types/uint32", Dtype::U32, &[5], counts(4)),
        tensor("types/uint16", Dtype::U16, &[5], counts(2)),
        tensor("types/uint8", Dtype::U8, &[5], counts(1)),
        tensor("types/bool", Dtype::BOOL, &[5], vec![0, 1, 0, 1, 0]),
        floats("types/scalar", &[], &[0.5]),
        floats("types/empty", &[0, 3], &[]),
    ]
}

#[test]
fn tensors_are_those_that_tensorflow_saved() {
    let by_names = sorted([types(), layers(0.0)].concat());
    for path in ["names", "names/model.ckpt-7", "names/model.ckpt-7.index", "names/model.ckpt-7.data-00000-of-00001"] {
        assert_eq!(sorted(load(&fixture(path)).unwrap()), by_names, "{path}");
    }
    let shards = |name: &str, more: f32| floats(name, &[3], &half_steps(&[0, 1, 2], more));
    let in_shards = vec![shards("a", 97.0), shards("b", 98.0), shards("c", 99.0)];
    for path in ["shards", "shards/model", "shards/model.data-00001-of-00002"] {
        assert_eq!(sorted(load(&fixture(path)).unwrap()), in_shards, "{path}");
    }
    let twins = |path: &str| {
        let twin =
            |index: usize, values: &[f32]| floats(&format!("{path}twins/{index}/kernel"), &[values.len()], values);
        vec![twin(0, &[-1.5, -1.0]), twin(1, &[-1.5, -1.0, -0.5])]
    };
    let by_objects = sorted([layers(0.0), twins("model/")].concat());
    assert_eq!(sorted(load(&fixture("objects")).unwrap()), by_objects);
    assert_eq!(sorted(load(&fixture("objects/ckpt-1")).unwrap()), by_objects);
    let saved = sorted([layers(0.0), twins("")].concat());
    for path in ["saved_model", "saved_model/variables", "saved_model/variables/variables.index"] {
        assert_eq!(sorted(load(&fixture(path)).unwrap()), saved, "{path}");
    }
}

#[test]
fn averages_take_the_places_of_what_they_are_of() {
    assert_eq!(sorted(load_averages(&fixture("names")).unwrap()), sorted([types(), layers(1.0)].concat()));
    let tensors = load_averages(&fixture("objects")).unwrap();
    let found = |name: &str| tensors.iter().find(|tensor| tensor.name == name).unwrap();
    assert_eq!(*found(KERNEL), layers(1.0)[0], "it has an average");
    assert_eq!(*found(VARIANCE), layers(0.0)[1], "it has none");
    for path in ["shards", "saved_model"] {
        let error = load_averages(&fixture(path)).unwrap_err().to_string();
        assert!(error.contains("holds no averaged weights"), "{error}");
    }
}

#[test]
fn numbers_become_f32_after_their_order_is_changed() {
    let tensors = load_weights(&fixture("names"), WeightOptions { to_f32: true, reject_non_finite: true, ema: false });
    let floats = tensors.unwrap();
    let dtype = |name: &str| floats.iter().find(|tensor| tensor.name == name).unwrap().dtype;
    let names = ["types/float16", "types/bfloat16", "types/float64", "types/int64"];
    assert_eq!(names.map(dtype), [Dtype::F32, Dtype::F32, Dtype::F32, Dtype::I64]);
    let wide: Vec<u8> = (0..6).flat_map(|value| f64::from(value).to_le_bytes()).collect();
    let folder = TempDir::new().unwrap();
    let described = BundleEntryProto { dtype: element::DOUBLE, ..entry(&[2, 3], 0, &wide) };
    let entries = with_header(&header(), &[("logits/kernel", described)]);
    write(&folder.path().join("w"), &index(&entries, 0), &wide);
    let read = load(folder.path()).unwrap();
    assert_eq!((read[0].name.as_str(), read[0].shape.as_slice()), ("classifier.weight", [3, 2].as_slice()));
    assert_eq!(read[0].to_f32().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
}

#[test]
fn folders_say_which_checkpoint_is_meant() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let refused = |given: &Path, parts: &[&str]| {
        let error = load(given).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    refused(&path("nothing"), &["nothing", "does not exist"]);
    assert_eq!(read_weights(folder.path(), [], WeightOptions::default()).unwrap(), None);
    write_ones(&path("a"));
    assert_eq!(load(folder.path()).unwrap().len(), 1);
    write_ones(&path("b"));
    refused(folder.path(), &["several TensorFlow checkpoints", "a, b"]);
    let name = |text: &str| fs::write(path("checkpoint"), text).unwrap();
    for good in ["model_checkpoint_path: \"b\"\nall_model_checkpoint_paths: \"a\"\n", "model_checkpoint_path:\"./a\""] {
        name(good);
        assert_eq!(load(folder.path()).unwrap().len(), 1, "{good}");
    }
    for (text, part) in [
        ("model_checkpoint_path: \"c\"", "names c, which is not there"),
        ("model_checkpoint_path: \"../a\"", "outside of its folder"),
        ("model_checkpoint_path: \"/\"", "names no file"),
        ("model_checkpoint_path: b", "has no line model_checkpoint_path: \"NAME\""),
        ("", "has no line"),
    ] {
        name(text);
        refused(folder.path(), &["checkpoint", part]);
    }
    fs::remove_file(path("b.index")).unwrap();
    refused(&path("b.data-00000-of-00001"), &["b.data-00000-of-00001", "no b.index beside it"]);
    fs::remove_file(path("a.data-00000-of-00001")).unwrap();
    refused(&path("a"), &["a.data-00000-of-00001"]);
    fs::write(path("saved_model.pb"), "").unwrap();
    refused(folder.path(), &["a SavedModel without variables/variables.index"]);
    fs::write(path("weights.safetensors"), "").unwrap();
    refused(&path("weights.safetensors"), &["too few for a safetensors file"]);
}

const ONES: [u8; 8] = [0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3f];

/// A checkpoint of one tensor of two elements.
fn write_ones(prefix: &Path) {
    write(prefix, &index(&with_header(&header(), &[("w", entry(&[2], 0, &ONES))]), 0), &ONES);
}

fn with_header(header: &BundleHeaderProto, entries: &[(&str, BundleEntryProto)]) -> KeyValues {
    let entries = entries.iter().map(|(name, entry)| (name.as_bytes().to_vec(), entry.encode_to_vec()));
    std::iter::once((Vec::new(), header.encode_to_vec())).chain(entries).collect()
}

#[test]
fn compressed_blocks_are_read() {
    let folder = TempDir::new().unwrap();
    let names: Vec<String> = (0..100).map(|number| format!("layer/{number:03}/kernel_of_a_layer")).collect();
    let entries: Vec<_> = names.iter().map(|name| (name.as_str(), entry(&[2], 0, &ONES[..0]))).collect();
    let entries: Vec<_> =
        entries.into_iter().map(|(name, entry)| (name, BundleEntryProto { shape: shape(&[0]), ..entry })).collect();
    let entries = with_header(&header(), &entries);
    let [plain, compressed] = [0, 1].map(|kind| index(&entries, kind));
    assert!(compressed.len() < plain.len());
    let read = |name: &str, index: &[u8]| {
        write(&folder.path().join(name), index, &[]);
        load(&folder.path().join(name)).unwrap()
    };
    assert_eq!(read("plain", &plain), read("compressed", &compressed));
    assert_eq!(read("plain", &plain).len(), 100);
}

#[test]
fn bad_checkpoints_are_refused_with_a_reason() {
    let good = entry(&[2], 0, &ONES);
    let with = |change: &dyn Fn(&mut BundleEntryProto)| {
        let mut changed = good.clone();
        change(&mut changed);
        with_header(&header(), &[("w", changed)])
    };
    let of_header = |header: BundleHeaderProto| with_header(&header, &[("w", good.clone())]);
    let dims = |sizes: &[i64]| shape(sizes);
    let long = "k".repeat(5000);
    let crc = masked_crc(&ONES);
    let other_checksum = format!("`w`: has the checksum {crc:08x} and should have {:08x}, in ", crc ^ 1);
    let cases: Vec<(KeyValues, &str)> = vec![
        (with(&|e| e.size = 12), "`w`: F32 of shape [2] needs 8 bytes, and it has 12"),
        (with(&|e| e.size = -8), "`w`: its place has negative numbers"),
        (with(&|e| e.offset = -1), "`w`: its place has negative numbers"),
        (with(&|e| e.shard_id = -1), "`w`: its place has negative numbers"),
        (with(&|e| e.shape = dims(&[-2])), "`w`: its shape [-2] is impossible"),
        (with(&|e| e.shape = dims(&[i64::MAX, 4])), "needs an impossible number of bytes, and it has 8"),
        (with(&|e| e.shape = dims(&[1 << 40, 1 << 10])), "needs 4503599627370496 bytes, and it has 8"),
        (with(&|e| e.shape = None), "`w`: F32 of shape [] needs 4 bytes"),
        (
            with(&|e| e.shape = Some(TensorShapeProto { dim: Vec::new(), unknown_rank: true })),
            "`w`: its shape is unknown",
        ),
        (
            with(&|e| {
                e.shape = dims(&[1 << 40]);
                e.size = 1 << 42;
            }),
            "(offset 0, 4398046511104 bytes) does not lie within the 8 bytes of",
        ),
        (with(&|e| e.offset = 1), "(offset 1, 8 bytes) does not lie within the 8 bytes of"),
        (with(&|e| e.offset = i64::MAX), "does not lie within the 8 bytes of"),
        (with(&|e| e.shard_id = 1), "`w`: lies in file 1, and there are 1 (counted from 0)"),
        (with(&|e| e.crc32c ^= 1), &other_checksum),
        (
            with(&|e| {
                e.dtype = 8;
                e.shape = dims(&[1]);
            }),
            "`w`: has elements of TensorFlow's type 8; bool, integers",
        ),
        (with(&|e| e.slices = vec![TensorSliceProto {}]), "`w`: is stored in parts"),
        (with(&|e| e.dtype = element::STRING), "holds no variables of a model"),
        (with_header(&header(), &[]), "holds no variables of a model"),
        (with_header(&header(), &[("v", good.clone()), ("w", good.clone())]), "`w`: begins at 0, within another one"),
        (with_header(&header(), &[("w", good.clone()), ("v", good.clone())]), "its keys are not in order"),
        (with_header(&header(), &[("w", good.clone()), ("w", good.clone())]), "its keys are not in order"),
        (with_header(&header(), &[(long.as_str(), good.clone())]), "a key of 5000 and a value of"),
        (vec![(b"w".to_vec(), good.encode_to_vec())], "it has no header"),
        (vec![], "it has no header"),
        (vec![(Vec::new(), vec![0xff])], "its header is damaged"),
        (vec![(Vec::new(), header().encode_to_vec()), (b"w".to_vec(), vec![0xff])], "`w`: its description is damaged"),
        (vec![(Vec::new(), header().encode_to_vec()), (vec![0xff], vec![])], "a name is not UTF-8"),
        (of_header(BundleHeaderProto { endianness: 1, ..header() }), "big-endian machine"),
        (of_header(BundleHeaderProto { num_shards: 0, ..header() }), "it says that it has 0 files"),
        (of_header(BundleHeaderProto { num_shards: 100_000, ..header() }), "it says that it has 100000 files"),
        (of_header(BundleHeaderProto { num_shards: 2, ..header() }), "bad.data-00000-of-00002"),
        (
            of_header(BundleHeaderProto { version: Some(VersionDef { producer: 2, min_consumer: 2 }), ..header() }),
            "it needs a reader of version 2; version 1 is read",
        ),
    ];
    let folder = TempDir::new().unwrap();
    let prefix = folder.path().join("bad");
    for (entries, reason) in cases {
        write(&prefix, &index(&entries, 0), &ONES);
        let error = load(&prefix).expect_err(reason).to_string();
        assert!(error.contains("bad.") && error.contains(reason), "{reason}: {error}");
    }
}

#[test]
fn bad_tables_are_refused_with_a_reason() {
    let good = [(b"w".to_vec(), block(&with_header(&header(), &[("w", entry(&[2], 0, &ONES))])))];
    let of_block = |content: Vec<u8>| table(&[(b"w".to_vec(), content)], 0);
    let of_entry = |shared: u64, own: u64, size: u64| {
        of_block([varint(shared), varint(own), varint(size), vec![b'w'; 4], vec![0; 4], vec![1, 0, 0, 0]].concat())
    };
    let whole = table(&good, 0);
    let footer = |handles: &[u64]| {
        let mut bytes: Vec<u8> = handles.iter().flat_map(|&number| varint(number)).collect();
        bytes.resize(40, 0);
        [&whole[..whole.len() - 48], &bytes, &whole[whole.len() - 8..]].concat()
    };
    // The length that Snappy says comes first.
    let bomb = {
        let content = [varint(1 << 30), vec![0; 8]].concat();
        let framed = [&content[..], &[1]].concat();
        let handle = [varint(0), varint(content.len() as u64)].concat();
        let crc = masked_crc(&framed).to_le_bytes();
        [&framed[..], &crc, &[0; 2], &handle, &vec![0; 40 - 2 - handle.len()], &whole[whole.len() - 8..]].concat()
    };
    // An index that leads to one block twice.
    let twice = {
        let content = [&good[0].1[..], &[0]].concat();
        let place = [varint(0), varint(good[0].1.len() as u64)].concat();
        let index = [&block(&[(b"w".to_vec(), place.clone()), (b"x".to_vec(), place)])[..], &[0]].concat();
        let start = content.len() + 4;
        let framed =
            [&content[..], &masked_crc(&content).to_le_bytes(), &index, &masked_crc(&index).to_le_bytes()].concat();
        let mut footer = [varint(0), varint(0), varint(start as u64), varint(index.len() as u64 - 1)].concat();
        footer.resize(40, 0);
        [&framed[..], &footer, &whole[whole.len() - 8..]].concat()
    };
    let many = {
        let mut entries = with_header(&header(), &[]);
        // Parts of a variable, which take no memory.
        entries.extend((0..1_u32 << 20).map(|number| ([&[0], &number.to_be_bytes()[..]].concat(), Vec::new())));
        of_block(block(&entries))
    };
    let cases = [
        (Vec::new(), "does not end with the magic number"),
        (whole[..whole.len() - 1].to_vec(), "does not end with the magic number"),
        (footer(&[0, 0, u64::MAX, u64::MAX]), "does not lie within the"),
        (footer(&[0, 0, u64::MAX, 4]), "does not lie within the"),
        (footer(&[0, 0, 0, u64::MAX - 4]), "does not lie within the"),
        (footer(&[0, 0, 1, 8]), "its index of blocks has the checksum "),
        (table(&good, 2), "is compressed in the way 2; 0 (not) and 1 (Snappy) are read"),
        (bomb, "has 1073741824 bytes without its compression"),
        (of_block(Vec::new()), "too short for what it says"),
        (of_block(vec![0xff; 4]), "too short for what it says"),
        (of_block(vec![2, 0, 0, 0]), "too short for what it says"),
        (of_entry(1, 4, 0), "an entry of a block is damaged"),
        (of_entry(0, u64::MAX, 0), "an entry of a block is damaged"),
        (of_entry(0, 4, 1), "an entry of a block is damaged"),
        (of_entry(0, 5, 0), "an entry of a block is damaged"),
        (table(&[(b"w".to_vec(), good[0].1.clone()), (b"x".to_vec(), good[0].1.clone())], 0), "not in order"),
        (twice, "its block at byte 0 begins within another one"),
        (many, "it has more than 1048576 entries"),
    ];
    let folder = TempDir::new().unwrap();
    let prefix = folder.path().join("bad");
    for (index, (bytes, reason)) in cases.into_iter().enumerate() {
        write(&prefix, &bytes, &ONES);
        let error = load(&prefix).expect_err(reason).to_string();
        assert!(error.contains("bad.index") && error.contains(reason), "{index}: {reason}: {error}");
    }
}

#[test]
fn bad_graphs_are_refused_with_a_reason() {
    let folder = TempDir::new().unwrap();
    let prefix = folder.path().join("bad");
    let refused = |text: &[u8], change: &dyn Fn(&mut BundleEntryProto), reason: &str| {
        let length = (text.len() as u32).to_le_bytes();
        let checked = masked_crc(&length).to_le_bytes();
        let stored = [&varint(text.len() as u64)[..], &checked, text].concat();
        let mut graph = BundleEntryProto { dtype: element::STRING, ..entry(&[], 8, &stored) };
        graph.crc32c = masked_crc(&[&length[..], &checked, text].concat());
        change(&mut graph);
        let entries = with_header(&header(), &[(OBJECT_GRAPH, graph), ("w", entry(&[2], 0, &ONES))]);
        write(&prefix, &index(&entries, 0), &[&ONES[..], &stored].concat());
        let error = load(&prefix).expect_err(reason).to_string();
        assert!(error.contains("bad.index") && error.contains(reason), "{reason}: {error}");
    };
    let object = |id: i32, key: &str| TrackableObject {
        children: vec![ObjectReference { node_id: id, local_name: "a".to_owned() }],
        attributes: vec![SerializedTensor {
            name: "VARIABLE_VALUE".to_owned(),
            full_name: String::new(),
            checkpoint_key: key.to_owned(),
        }],
        slot_variables: Vec::new(),
    };
    let graph = |nodes: Vec<TrackableObject>| TrackableObjectGraph { nodes }.encode_to_vec();
    let same = |_: &mut BundleEntryProto| {};
    refused(&graph(vec![object(7, "w")]), &same, "its graph leads to object 7, and has 1");
    refused(&graph(vec![object(0, "v")]), &same, "`v`: the graph of objects has it, and the index does not");
    refused(&graph(vec![object(1, "w"), object(0, "w")]), &same, "`w`: two variables have it");
    refused(&[], &same, "holds no variables of a model");
    refused(&[0x0a, 0x80], &same, "is damaged: ");
    refused(b"", &|graph| graph.crc32c ^= 1, "the whole has the checksum ");
    refused(b"", &|graph| graph.size = 4, "is truncated");
    refused(b"abc", &|graph| graph.size -= 1, "has 2 bytes of text, and says that they are 3");
    refused(b"", &|graph| graph.shape = shape(&[1]), "is no single string");
    refused(b"", &|graph| graph.dtype = element::VARIANT, "is no single string");
}

#[test]
fn every_prefix_and_every_changed_byte_is_noticed() {
    const SUFFIXES: [&str; 2] = [".index", ".data-00000-of-00001"];
    let folder = TempDir::new().unwrap();
    let prefix = folder.path().join("cut");
    for (name, stem) in [("names", "model.ckpt-7"), ("objects", "ckpt-1")] {
        let expected = load(&fixture(name)).unwrap();
        let files = SUFFIXES.map(|suffix| fs::read(with_suffix(&fixture(name).join(stem), suffix)).unwrap());
        write(&prefix, &files[0], &files[1]);
        let mut noticed = [0, 0];
        for (file, whole) in files.iter().enumerate() {
            let path = with_suffix(&prefix, SUFFIXES[file]);
            // Elements are many and alike.
            let step = [1, 5][file];
            for length in (0..whole.len()).step_by(step) {
                fs::write(&path, &whole[..length]).unwrap();
                let error = load(&prefix).unwrap_err().to_string();
                assert!(error.contains("cut."), "{error}");
            }
            let mut changed = whole.clone();
            for place in (0..whole.len()).step_by(step) {
                changed[place] ^= 0x21;
                fs::write(&path, &changed).unwrap();
                changed[place] ^= 0x21;
                match load(&prefix) {
                    Ok(tensors) => assert_eq!(tensors, expected, "byte {place} of file {file}"),
                    Err(error) => {
                        noticed[file] += 1;
                        assert!(error.to_string().contains("cut."), "{error}");
                    }
                }
            }
            fs::write(&path, whole).unwrap();
        }
        // Padding of the footer, the block of no entries and what an optimizer keeps may change.
        let of_model: usize = expected.iter().map(|tensor| tensor.data.len()).sum();
        assert!(noticed[0] >= files[0].len() - 64 && noticed[1] >= of_model / 5 - 20, "{noticed:?}");
    }
}

/// Writes a checkpoint of one block, whose checksum is good whatever lies in it.
fn with_block(prefix: &Path, content: Vec<u8>) {
    write(prefix, &table(&[(b"w".to_vec(), content)], 0), &[ONES; 4].concat());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checksums hide most changes; here nothing does.
    #[test]
    fn altered_blocks_never_panic(changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..6)) {
        let entries: Vec<_> = (0..4).map(|i| (["a", "b", "b/Adam", "c"][i], entry(&[1, 2], 8 * i, &ONES))).collect();
        let mut content = block(&with_header(&header(), &entries));
        for (position, value) in changes {
            let position = position % content.len();
            content[position] = value;
        }
        let folder = TempDir::new().unwrap();
        let prefix = folder.path().join("altered");
        with_block(&prefix, content);
        if let Ok(tensors) = load(&prefix) {
            prop_assert!(tensors.iter().map(|tensor| tensor.data.len()).sum::<usize>() <= 32);
        }
    }
}
