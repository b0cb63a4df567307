//! How the training step of a model scales over the nodes of a cluster.

use super::from_plan::{profile_of_plan, profiled, roofline};
use super::{Cluster, ClusterError, DeviceDescription, Outcome, Ranks, StepProfile, buckets};
use crate::explain::{Request, work};
use crate::machine::Limits;
use bessemer_ir::passes::compile;
use bessemer_ir::plan::{NullTarget, Target};
use bessemer_models::ModelError;
use serde::Serialize;

/// What is to be simulated: weak scaling, each rank doing the same however many there are.
#[derive(Clone, Debug)]
pub struct Scaling {
    /// The step of one rank.
    pub request: Request,
    /// Name or file of the cluster.
    pub cluster: String,
    /// Numbers of nodes; powers of two up to those of the cluster if empty.
    pub nodes: Vec<usize>,
    /// The step of one rank as it was measured; estimated by the roofline of the device if `None`.
    pub profile: Option<StepProfile>,
    /// Samples per second that the input of one node delivers, over that of the profile.
    pub input_rate: Option<f64>,
}

/// A simulated step, and the buckets of its gradients.
#[derive(Clone, Debug, Serialize)]
pub struct ScalingRow {
    /// Times and rates.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Number of buckets, cut by size as the compiler does.
    pub buckets: usize,
    /// Seconds of the step with the boundaries of buckets for which it is shortest.
    pub shortest_seconds: f64,
}

/// The simulated scaling of a model.
#[derive(Clone, Debug, Serialize)]
pub struct ScalingTable {
    /// Name of the model.
    pub model: String,
    /// Samples of one rank in a step.
    pub samples: f64,
    /// Name or file of the cluster.
    pub cluster: String,
    /// The cluster in words.
    pub description: String,
    /// The device whose roofline estimates kernels; `None` for a measured profile.
    pub estimated_for: Option<String>,
    /// Bytes of all gradients.
    pub gradient_bytes: u64,
    /// Sums that micro-batches of a step wait for, of norms and weights over all ranks.
    pub micro_batch_sums: usize,
    /// Whether gradients travel while the rest of the step is computed.
    pub overlap: bool,
    /// One device first.
    pub rows: Vec<ScalingRow>,
}

/// Simulates one device, and all devices of each number of nodes.
///
/// # Errors
/// [`ClusterError`] for a cluster that is not known or is smaller than asked for, or a model that does not compile.
pub fn scaling(scaling: &Scaling) -> Result<ScalingTable, ClusterError> {
    let Scaling { request, cluster: name, nodes, .. } = scaling;
    let cluster = Cluster::find(name)?;
    if let Some(&nodes) = nodes.iter().find(|&&nodes| nodes > cluster.nodes) {
        return Err(ClusterError::Nodes { name: name.clone(), available: cluster.nodes, nodes });
    }
    if let Some(model) = scaling.profile.as_ref().and_then(|profile| profile.model.clone())
        && model != request.model
    {
        return Err(ClusterError::OtherModel { profile: model, asked: request.model.clone() });
    }
    let (mut profile, estimated_for) = match &scaling.profile {
        Some(profile) => (profile.clone(), None),
        None => estimated(request, &cluster)?,
    };
    profile.input_rate = scaling.input_rate.or(profile.input_rate);
    let overlap = request.compile.buckets.overlap;
    if !overlap {
        profile = profile.without_overlap();
    }
    let doublings = std::iter::successors(Some(1), |nodes| Some(nodes * 2)).take_while(|&nodes| nodes <= cluster.nodes);
    let nodes: Vec<usize> = if nodes.is_empty() { doublings.collect() } else { nodes.clone() };
    let several = nodes.into_iter().map(|nodes| Ranks { nodes, devices: cluster.devices });
    let row = |ranks| {
        let (usual, best) = (profile.usual_buckets(), buckets::choose(&profile, &cluster, ranks));
        let in_buckets = |counts: &[usize]| profile.simulate_in_buckets(counts, &cluster, ranks);
        let shortest_seconds = in_buckets(&best).step_seconds;
        ScalingRow { outcome: in_buckets(&usual), buckets: usual.len(), shortest_seconds }
    };
    Ok(ScalingTable {
        model: request.model.clone(),
        samples: profile.samples,
        cluster: name.clone(),
        description: cluster.description.clone(),
        estimated_for,
        gradient_bytes: profile.gradient_bytes(),
        micro_batch_sums: profile.collectives.iter().filter(|sum| sum.each_micro_batch).count(),
        overlap,
        rows: std::iter::once(Ranks::ONE).chain(several.filter(|&ranks| ranks != Ranks::ONE)).map(row).collect(),
    })
}

/// The step by the roofline of the cluster's device, or of this machine's, and the name of that device.
fn estimated(request: &Request, cluster: &Cluster) -> Result<(StepProfile, Option<String>), ClusterError> {
    let micro_batches = request.settings.accumulation;
    let settings = profiled(request.settings);
    let graph = work(&Request { settings, ..request.clone() }, request.batch_size)?.graph;
    let (target, device): (Box<dyn Target>, _) = match &cluster.device {
        Some(device) => (Box::new(NullTarget), device.clone()),
        None => {
            let limits = Limits::measure(&*request.device.open()?);
            (request.device.target(), DeviceDescription::measured("this machine", &limits))
        }
    };
    let plan = compile(&graph, &*target, &request.compile).map_err(ModelError::from)?;
    let profile = profile_of_plan(&plan, roofline(&plan, &device), request.batch_size, micro_batches);
    Ok((profile, Some(device.name)))
}
