//! Writes checkpoints as TensorFlow does, and others as it would not, for tests.

use super::proto::{BundleEntryProto, BundleHeaderProto, Dim, TensorShapeProto, VersionDef, element};
use crate::NamedTensor;
use bessemer_data::tfrecord::masked_crc;
use prost::Message;
use safetensors::Dtype;
use std::fs;
use std::path::Path;

pub(super) type KeyValues = Vec<(Vec<u8>, Vec<u8>)>;

pub(super) fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// The content of a block; keys share as much as they can, but for one of four.
pub(super) fn block(entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let (mut bytes, mut restarts) = (Vec::new(), Vec::new());
    let mut last: &[u8] = &[];
    for (index, (key, value)) in entries.iter().enumerate() {
        let mut shared = key.iter().zip(last).take_while(|(a, b)| a == b).count();
        if index % 4 == 0 {
            restarts.push(bytes.len() as u32);
            shared = 0;
        }
        for size in [shared, key.len() - shared, value.len()] {
            bytes.extend(varint(size as u64));
        }
        bytes.extend([&key[shared..], value].concat());
        last = key;
    }
    if restarts.is_empty() {
        restarts.push(0);
    }
    restarts.iter().chain([&(restarts.len() as u32)]).for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes
}

/// A table of blocks that are given by the last keys in them; `kind` is that of their compression.
pub(super) fn table(blocks: &[(Vec<u8>, Vec<u8>)], kind: u8) -> Vec<u8> {
    let mut file = Vec::new();
    let mut add = |content: &[u8]| {
        let mut content = content.to_vec();
        if kind == 1 {
            content = snap::raw::Encoder::new().compress_vec(&content).unwrap();
        }
        let handle = [varint(file.len() as u64), varint(content.len() as u64)].concat();
        content.push(kind);
        file.extend_from_slice(&content);
        file.extend(masked_crc(&content).to_le_bytes());
        handle
    };
    let index: KeyValues = blocks.iter().map(|(key, content)| (key.clone(), add(content))).collect();
    let mut footer = [add(&block(&[])), add(&block(&index))].concat();
    footer.resize(40, 0);
    file.extend(footer);
    file.extend(0xdb47_7524_8b80_fb57_u64.to_le_bytes());
    file
}

/// An index of two blocks.
pub(super) fn index(entries: &[(Vec<u8>, Vec<u8>)], kind: u8) -> Vec<u8> {
    let (first, second) = entries.split_at(entries.len() / 2);
    let blocks = [first, second].into_iter().filter_map(|entries| Some((entries.last()?.0.clone(), block(entries))));
    table(&blocks.collect::<Vec<_>>(), kind)
}

pub(super) fn header() -> BundleHeaderProto {
    BundleHeaderProto { num_shards: 1, endianness: 0, version: Some(VersionDef { producer: 1, min_consumer: 0 }) }
}

pub(super) fn shape(sizes: &[i64]) -> Option<TensorShapeProto> {
    let dim = sizes.iter().map(|&size| Dim { size }).collect();
    Some(TensorShapeProto { dim, unknown_rank: false })
}

/// A description of `data`, which lie at `offset`.
pub(super) fn entry(sizes: &[i64], offset: usize, data: &[u8]) -> BundleEntryProto {
    BundleEntryProto {
        dtype: element::FLOAT,
        shape: shape(sizes),
        shard_id: 0,
        offset: offset as i64,
        size: data.len() as i64,
        crc32c: masked_crc(data),
        slices: Vec::new(),
    }
}

pub(super) fn write(prefix: &Path, index: &[u8], data: &[u8]) {
    let file = |suffix: &str| format!("{}{suffix}", prefix.display());
    fs::write(file(".index"), index).unwrap();
    fs::write(file(".data-00000-of-00001"), data).unwrap();
}

/// Writes a checkpoint of TensorFlow 1 by names of tensors of F32, for tests.
///
/// # Panics
/// Tensors of another type; files that cannot be written.
pub fn write_tensorflow_checkpoint(prefix: &Path, tensors: &[NamedTensor<'_>]) {
    let mut sorted: Vec<_> = tensors.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let mut data = Vec::new();
    let mut entries: KeyValues = vec![(Vec::new(), header().encode_to_vec())];
    for tensor in sorted {
        assert_eq!(tensor.dtype, Dtype::F32);
        let sizes: Vec<i64> = tensor.shape.iter().map(|&size| size as i64).collect();
        entries.push((tensor.name.clone().into_bytes(), entry(&sizes, data.len(), &tensor.data).encode_to_vec()));
        data.extend_from_slice(&tensor.data);
    }
    write(prefix, &index(&entries, 0), &data);
}
