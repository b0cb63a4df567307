//! Clusters: built in, or described by a TOML file.

use super::{MOST_RANKS, Ranks};
use crate::machine::Limits;
use bessemer_train::recipe::Compute;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// A cluster of equal nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// What it is, in words.
    pub description: String,
    /// Where its figures are from.
    pub source: String,
    /// Nodes that there are.
    pub nodes: usize,
    /// Devices of each node.
    pub devices: usize,
    /// How collectives go over the links.
    pub collectives: Collectives,
    /// Messages of a rank that are on the way at one time; of `messages` only.
    #[serde(default = "one")]
    pub in_flight: usize,
    /// The share by which a kernel takes longer while a collective runs beside it.
    #[serde(default)]
    pub slow_down: f64,
    /// Milliseconds that each step of several ranks takes longer, whatever it sends.
    #[serde(default)]
    pub fixed_ms: f64,
    /// Between the devices of a node.
    pub inside: Link,
    /// Between nodes, shared by all devices of a node.
    pub between: Link,
    /// The device, for estimates of kernels; that of this machine, measured, if it is left out.
    #[serde(default)]
    pub device: Option<DeviceDescription>,
}

fn one() -> usize {
    1
}

/// How collectives go over the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collectives {
    /// NCCL: reduced within nodes and between nodes at the same time, piece by piece.
    Nccl,
    /// Every rank sends a part to every other, sums the parts that it receives, and sends the sum to all.
    Messages,
}

/// A link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Microseconds before the first byte arrives.
    pub latency_us: f64,
    /// 10^9 bytes per second in each direction: inside, of one device; between, of one node.
    pub gbytes: f64,
}

/// Limits of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceDescription {
    /// Product name.
    pub name: String,
    /// 10^12 FLOPs per second of products of `f32`.
    pub fp32_tflops: f64,
    /// 10^12 FLOPs per second of products of 16-bit operands.
    pub half_tflops: f64,
    /// 10^9 bytes per second from memory.
    pub memory_gbytes: f64,
}

impl DeviceDescription {
    /// The device of this machine by its measured limits.
    pub fn measured(name: &str, limits: &Limits) -> DeviceDescription {
        DeviceDescription {
            name: name.to_owned(),
            fp32_tflops: limits.fp32_gflops / 1e3,
            half_tflops: limits.peak(Compute::Bf16).1 / 1e3,
            memory_gbytes: limits.read_gbytes,
        }
    }
}

/// A cluster or a profile that cannot be used.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("{name}: neither a file nor a cluster that is built in; there are {}", Cluster::names().join(", "))]
    Unknown { name: String },
    #[error("{name}: {problem}")]
    Invalid { name: String, problem: String },
    #[error("{}: {problem}", path.display())]
    Profile { path: PathBuf, problem: String },
    #[error("the profile is of a step of {profile}, not of {asked}")]
    OtherModel { profile: String, asked: String },
    #[error("{name} has {available} nodes, not {nodes}")]
    Nodes { name: String, available: usize, nodes: usize },
    #[error("the cluster ({description}) has {available} devices (nodes x devices of each), not {ranks}")]
    Ranks { description: String, available: Ranks, ranks: Ranks },
    #[error(transparent)]
    Read(#[from] bessemer_data::DataError),
    #[error(transparent)]
    Model(#[from] bessemer_models::ModelError),
    #[error(transparent)]
    Device(#[from] bessemer_train::DeviceError),
}

/// Built-in clusters: name and description.
const BUILT_IN: [(&str, &str); 6] = [
    ("h200x8", include_str!("clusters/h200x8.toml")),
    ("a100x8", include_str!("clusters/a100x8.toml")),
    ("v100x8", include_str!("clusters/v100x8.toml")),
    ("v100x8-ib100", include_str!("clusters/v100x8-ib100.toml")),
    ("v100x16", include_str!("clusters/v100x16.toml")),
    ("cpu-1g", include_str!("clusters/cpu-1g.toml")),
];

/// Seconds of a collective, and those for which each link is busy with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CollectiveTime {
    pub(super) seconds: f64,
    pub(super) inside: f64,
    pub(super) between: f64,
}

impl Cluster {
    /// Names of the clusters that are built in.
    pub fn names() -> Vec<&'static str> {
        BUILT_IN.iter().map(|(name, _)| *name).collect()
    }

    /// A cluster that is built in, by its name, or one that a TOML file describes.
    ///
    /// # Errors
    /// [`ClusterError`] for an unknown name, a file that cannot be read, or a description that is not possible.
    pub fn find(name: &str) -> Result<Cluster, ClusterError> {
        let built_in = BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
        let text = match built_in {
            Some(text) => text,
            None if Path::new(name).is_file() => fs::read_to_string(name)
                .map_err(|error| ClusterError::Invalid { name: name.to_owned(), problem: error.to_string() })?,
            None => return Err(ClusterError::Unknown { name: name.to_owned() }),
        };
        Cluster::parse(&text).map_err(|problem| ClusterError::Invalid { name: name.to_owned(), problem })
    }

    /// # Errors
    /// [`ClusterError::Ranks`] for more ranks than there are devices.
    pub fn check(&self, ranks: Ranks) -> Result<(), ClusterError> {
        if ranks.nodes <= self.nodes && ranks.devices <= self.devices {
            return Ok(());
        }
        let available = Ranks { nodes: self.nodes, devices: self.devices };
        Err(ClusterError::Ranks { description: self.description.clone(), available, ranks })
    }

    fn parse(text: &str) -> Result<Cluster, String> {
        let cluster: Cluster = toml::from_str(text).map_err(|error| error.to_string())?;
        let device = cluster.device.as_ref();
        let counts = [("nodes", cluster.nodes), ("devices", cluster.devices), ("in_flight", cluster.in_flight)];
        if let Some((field, value)) = counts.into_iter().find(|(_, value)| !(1..=MOST_RANKS).contains(value)) {
            return Err(format!("`{field}` is {value}, and must be 1 to {MOST_RANKS}"));
        }
        let from_0 = [
            ("slow_down", cluster.slow_down),
            ("fixed_ms", cluster.fixed_ms),
            ("inside.latency_us", cluster.inside.latency_us),
            ("between.latency_us", cluster.between.latency_us),
        ];
        let above_0 = [
            ("inside.gbytes", Some(cluster.inside.gbytes)),
            ("between.gbytes", Some(cluster.between.gbytes)),
            ("device.fp32_tflops", device.map(|device| device.fp32_tflops)),
            ("device.half_tflops", device.map(|device| device.half_tflops)),
            ("device.memory_gbytes", device.map(|device| device.memory_gbytes)),
        ];
        let from_0 = from_0.into_iter().map(|(field, value)| (field, value, value >= 0.0, "at least 0"));
        let above_0 =
            above_0.into_iter().filter_map(|(field, value)| value.map(|value| (field, value, value > 0.0, "above 0")));
        match from_0.chain(above_0).find(|(_, value, holds, _)| !(value.is_finite() && *holds)) {
            Some((field, value, _, allowed)) => Err(format!("`{field}` is {value}, and must be {allowed}")),
            None => Ok(cluster),
        }
    }

    /// Seconds that each step of several ranks takes longer, whatever it sends.
    pub(super) fn fixed_seconds(&self) -> f64 {
        self.fixed_ms / 1e3
    }

    /// Time of an all-reduce of `bytes` over `ranks`; nothing for one rank.
    ///
    /// With `n` nodes of `g` devices, `N = n g`, a latency of `L` and bandwidths of `B_in` of a device and `B_out` of a node:
    /// - NCCL: `L (1 + log2 n) + max(2 S (g-1)/g / B_in, 2 S (n-1)/n / B_out)`: a ring within each node (Patarasuk, Yuan 2009,
    ///   Bandwidth optimal all-reduce algorithms, section 3), one between nodes, both pipelined, and a tree's latency.
    /// - Messages: `2 (N-1) L / d + max(2 S (g-1)/N / B_in, 2 g S (N-g)/N / B_out)` with `d` messages on the way: each rank
    ///   sends `S/N` twice to each other rank, those of a node over one link.
    pub(super) fn collective(&self, bytes: u64, ranks: Ranks) -> CollectiveTime {
        if ranks.count() == 1 {
            return CollectiveTime { seconds: 0.0, inside: 0.0, between: 0.0 };
        }
        let (s, n, g) = (bytes as f64, ranks.nodes as f64, ranks.devices as f64);
        let all = n * g;
        let latency = if ranks.nodes > 1 { self.between.latency_us } else { self.inside.latency_us } / 1e6;
        let (latency, inside, between) = match self.collectives {
            Collectives::Nccl => (latency * (1.0 + n.log2()), 2.0 * s * (g - 1.0) / g, 2.0 * s * (n - 1.0) / n),
            Collectives::Messages => (
                latency * 2.0 * (all - 1.0) / self.in_flight as f64,
                2.0 * s * (g - 1.0) / all,
                2.0 * g * s * (all - g) / all,
            ),
        };
        let (inside, between) = (inside / (self.inside.gbytes * 1e9), between / (self.between.gbytes * 1e9));
        CollectiveTime { seconds: latency + inside.max(between), inside, between }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_clusters_are_possible_and_name_their_source() {
        for name in Cluster::names() {
            let cluster = Cluster::find(name).unwrap();
            assert!(cluster.source.len() > 20 && cluster.description.len() > 10, "{name}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_description_is_named() {
        let text = BUILT_IN[0].1;
        let problem = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            Cluster::parse(&text.replacen(from, to, 1)).unwrap_err()
        };
        assert_eq!(problem("devices = 8", "devices = 0"), "`devices` is 0, and must be 1 to 65536");
        let many = problem("nodes = 4", "nodes = 9223372036854775807");
        assert_eq!(many, "`nodes` is 9223372036854775807, and must be 1 to 65536");
        assert_eq!(problem("gbytes = ", "gbytes = -"), "`inside.gbytes` is -450, and must be above 0");
        assert_eq!(problem("latency_us = ", "latency_us = -"), "`inside.latency_us` is -20, and must be at least 0");
        assert!(problem("collectives = \"nccl\"", "collectives = \"mail\"").contains("`nccl` or `messages`"));
        assert!(problem("devices = 8", "device_count = 8").contains("device_count"));
        let unknown = Cluster::find("h300x8").unwrap_err().to_string();
        assert!(unknown.contains("h300x8") && unknown.contains("h200x8, a100x8"), "{unknown}");
    }

    #[test]
    fn collectives_take_the_time_of_their_formulas() {
        let mut cluster = Cluster::find("v100x8-ib100").unwrap();
        cluster.inside = Link { latency_us: 10.0, gbytes: 100.0 };
        cluster.between = Link { latency_us: 20.0, gbytes: 10.0 };
        let seconds = |cluster: &Cluster, nodes, devices| {
            let time = cluster.collective(1_000_000_000, Ranks { nodes, devices });
            (time.seconds * 1e6).round() / 1e6
        };
        assert_eq!(seconds(&cluster, 1, 1), 0.0);
        assert_eq!(seconds(&cluster, 1, 8), 0.017510, "10 us and 1.75 GB at 100 GB/s");
        assert_eq!(seconds(&cluster, 4, 8), 0.150060, "3 x 20 us and 1.5 GB at 10 GB/s");
        cluster.collectives = Collectives::Messages;
        cluster.in_flight = 2;
        assert_eq!(seconds(&cluster, 4, 1), 0.150060, "6 messages, 2 at a time, and 1.5 GB at 10 GB/s");
        assert_eq!(seconds(&cluster, 1, 4), 0.015030, "the same over the link inside");
        assert_eq!(seconds(&cluster, 2, 2), 0.200060, "two ranks send half of 2 GB each over one link");
    }
}
