//! The bidirectional feature pyramid (section 3 of the paper). Nodes and edges are named as in the `effdet` package.

use super::config::{DetectorOptions, EdgeWeights, LEVELS};
use super::separable::SeparableConv;
use crate::efficientnet::Features;
use bessemer_ir::Value;
use bessemer_nn::{BatchNorm, Builder, Conv, ConvOptions, Init, MaxPool, Padding, Result};

/// A node of a cell: its level, counted from the finest, and the numbers of the maps it sums. Those of the cell's inputs are
/// 0 to 4, those of nodes follow.
const NODES: [(usize, &[usize]); 8] = [
    (3, &[3, 4]),
    (2, &[2, 5]),
    (1, &[1, 6]),
    (0, &[0, 7]),
    (1, &[1, 7, 8]),
    (2, &[2, 6, 9]),
    (3, &[3, 5, 10]),
    (4, &[4, 11]),
];

/// Keeps the quotient of edge weights finite.
const EDGE_EPS: f64 = 1e-4;

/// The maps that detect, finest first, each `[B, H, W, width]`, from those of the backbone.
pub(super) fn pyramid(b: &mut Builder, features: Features, options: &DetectorOptions) -> Result<Vec<Value>> {
    b.scope("fpn", |b| {
        let mut maps = vec![features.p3, features.p4, features.p5];
        let projected = b.scope("resample.3", |b| project(b, features.p5, options))?;
        maps.push(halve(b, projected)?);
        maps.push(halve(b, maps[3])?);
        for index in 0..options.cells {
            maps = b.scope(&format!("cell.{index}"), |b| cell(b, &maps, options))?;
        }
        Ok(maps)
    })
}

fn cell(b: &mut Builder, inputs: &[Value], options: &DetectorOptions) -> Result<Vec<Value>> {
    let mut maps: Vec<(usize, Value)> = inputs.iter().copied().enumerate().collect();
    for (number, (level, edges)) in NODES.into_iter().enumerate() {
        let node = b.scope(&format!("fnode.{number}"), |b| {
            let sum = b.scope("combine", |b| combine(b, &maps, level, edges, options))?;
            let x = b.swish(sum)?;
            b.scope("after_combine.conv", |b| {
                let conv = SeparableConv::new(b, options.width, options.width, [Init::GlorotUniform; 2], Init::Zeros)?;
                let x = conv.apply(b, x)?;
                BatchNorm::new(b, "bn", options.width, options.norm)?.apply(b, x)
            })
        })?;
        maps.push((level, node));
    }
    Ok(maps.split_off(maps.len() - LEVELS).into_iter().map(|(_, map)| map).collect())
}

/// The weighted sum of maps, each brought to `level` and to the pyramid's width.
pub(super) fn combine(
    b: &mut Builder,
    maps: &[(usize, Value)],
    level: usize,
    edges: &[usize],
    options: &DetectorOptions,
) -> Result<Value> {
    let mut inputs = Vec::with_capacity(edges.len());
    for &edge in edges {
        let (from, map) = maps[edge];
        let map = b.scope(&format!("resample.{edge}"), |b| project(b, map, options))?;
        inputs.push(match from {
            _ if from < level => halve(b, map)?,
            _ if from > level => b.graph.upsample(map, [2; 2])?,
            _ => map,
        });
    }
    let weights = weights(b, edges.len(), options.edges)?;
    let mut sum = None;
    for (index, &input) in inputs.iter().enumerate() {
        let weighted = match &weights {
            Some(weights) => b.graph.mul(input, weights[index])?,
            None => input,
        };
        sum = Some(match sum {
            Some(sum) => b.graph.add(sum, weighted)?,
            None => weighted,
        });
    }
    Ok(sum.expect("a node has inputs"))
}

/// The weight of each edge, `f32[]`; `None` where all are 1.
fn weights(b: &mut Builder, count: usize, form: EdgeWeights) -> Result<Option<Vec<Value>>> {
    if form == EdgeWeights::One {
        return Ok(None);
    }
    let weights = b.bias("edge_weights", count, Init::Ones)?;
    let g = &mut b.graph;
    let weights = if form == EdgeWeights::Positive { g.relu(weights)? } else { weights };
    let sum = g.sum(weights, &[0])?;
    let divisor = g.add_scalar(sum, EDGE_EPS)?;
    let shares = g.div(weights, divisor)?;
    // A sum of zeros and one share joins the regions around it, forwards and backwards, which a slice of one element does not.
    let each = (0..count).map(|index| {
        let alone: Vec<f64> = (0..count).map(|other| if other == index { 1.0 } else { 0.0 }).collect();
        let alone = g.constant_vector(&alone)?;
        let share = g.mul(shares, alone)?;
        g.sum(share, &[0])
    });
    Ok(Some(each.collect::<Result<_>>()?))
}

/// A map with the pyramid's width: by a 1x1 convolution with a norm, `conv`, unless it has that width.
fn project(b: &mut Builder, map: Value, options: &DetectorOptions) -> Result<Value> {
    let inputs = b.graph.shape(map).cols();
    if inputs == options.width {
        return Ok(map);
    }
    b.scope("conv", |b| {
        let conv = ConvOptions { bias: Some(Init::Zeros), ..ConvOptions::new(options.width, 1, Init::GlorotUniform) };
        let x = Conv::new(b, "conv", inputs, conv)?.apply(b, map)?;
        BatchNorm::new(b, "bn", options.width, options.norm)?.apply(b, x)
    })
}

/// Half the rows and columns, by the maximum of 3x3 pixels.
fn halve(b: &mut Builder, map: Value) -> Result<Value> {
    b.max_pool(map, MaxPool { window: 3, stride: 2, padding: Padding::Same })
}
