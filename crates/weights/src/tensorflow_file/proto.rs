//! The messages of TensorFlow's `tensor_bundle.proto` and `trackable_object_graph.proto` that checkpoints have.

/// `tensorflow.DataType`: types of elements.
pub(super) mod element {
    pub(crate) const FLOAT: i32 = 1;
    pub(crate) const DOUBLE: i32 = 2;
    pub(crate) const INT32: i32 = 3;
    pub(crate) const UINT8: i32 = 4;
    pub(crate) const INT16: i32 = 5;
    pub(crate) const INT8: i32 = 6;
    pub(crate) const STRING: i32 = 7;
    pub(crate) const INT64: i32 = 9;
    pub(crate) const BOOL: i32 = 10;
    pub(crate) const BFLOAT16: i32 = 14;
    pub(crate) const UINT16: i32 = 17;
    pub(crate) const HALF: i32 = 19;
    pub(crate) const RESOURCE: i32 = 20;
    pub(crate) const VARIANT: i32 = 21;
    pub(crate) const UINT32: i32 = 22;
    pub(crate) const UINT64: i32 = 23;
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BundleHeaderProto {
    #[prost(int32, tag = "1")]
    pub num_shards: i32,
    /// 0: little, 1: big.
    #[prost(int32, tag = "2")]
    pub endianness: i32,
    #[prost(message, optional, tag = "3")]
    pub version: Option<VersionDef>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct VersionDef {
    #[prost(int32, tag = "1")]
    pub producer: i32,
    #[prost(int32, tag = "2")]
    pub min_consumer: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BundleEntryProto {
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
    #[prost(int32, tag = "3")]
    pub shard_id: i32,
    #[prost(int64, tag = "4")]
    pub offset: i64,
    #[prost(int64, tag = "5")]
    pub size: i64,
    #[prost(fixed32, tag = "6")]
    pub crc32c: u32,
    /// Parts of a partitioned variable.
    #[prost(message, repeated, tag = "7")]
    pub slices: Vec<TensorSliceProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TensorSliceProto {}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TensorShapeProto {
    #[prost(message, repeated, tag = "2")]
    pub dim: Vec<Dim>,
    #[prost(bool, tag = "3")]
    pub unknown_rank: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Dim {
    #[prost(int64, tag = "1")]
    pub size: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TrackableObjectGraph {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<TrackableObject>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TrackableObject {
    #[prost(message, repeated, tag = "1")]
    pub children: Vec<ObjectReference>,
    #[prost(message, repeated, tag = "2")]
    pub attributes: Vec<SerializedTensor>,
    #[prost(message, repeated, tag = "3")]
    pub slot_variables: Vec<SlotVariableReference>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ObjectReference {
    #[prost(int32, tag = "1")]
    pub node_id: i32,
    #[prost(string, tag = "2")]
    pub local_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SerializedTensor {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub full_name: String,
    #[prost(string, tag = "3")]
    pub checkpoint_key: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SlotVariableReference {
    #[prost(int32, tag = "1")]
    pub original_variable_node_id: i32,
    #[prost(string, tag = "2")]
    pub slot_name: String,
    #[prost(int32, tag = "3")]
    pub slot_variable_node_id: i32,
}
