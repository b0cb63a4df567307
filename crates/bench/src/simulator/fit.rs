//! Fitting of a few parameters.

/// Steps of the search.
const ITERATIONS: usize = 400;

/// The point near `start` where `cost` is least, by the downhill simplex method (Nelder, Mead 1965, with their coefficients:
/// reflection 1, expansion 2, contraction and shrinkage 1/2). The first simplex has edges of `edge`.
pub(super) fn minimum(start: &[f64], edge: f64, cost: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let vertex = |point: Vec<f64>| (cost(&point), point);
    let moved = |axis: usize| {
        let mut point = start.to_vec();
        point[axis] += edge;
        vertex(point)
    };
    let mut simplex: Vec<(f64, Vec<f64>)> = std::iter::once(vertex(start.to_vec())).collect();
    simplex.extend((0..start.len()).map(moved));
    for _ in 0..ITERATIONS {
        simplex.sort_by(|a, b| a.0.total_cmp(&b.0));
        let worst = simplex.len() - 1;
        if simplex[worst].0 - simplex[0].0 <= 1e-12 * simplex[0].0.abs() {
            break;
        }
        let centre = |axis: usize| simplex[..worst].iter().map(|(_, p)| p[axis]).sum::<f64>() / worst as f64;
        let centre: Vec<f64> = (0..start.len()).map(centre).collect();
        let along = |factor: f64| {
            let point = centre.iter().zip(&simplex[worst].1).map(|(c, w)| c + factor * (c - w)).collect();
            vertex(point)
        };
        let reflected = along(1.0);
        let replacement = if reflected.0 < simplex[0].0 {
            let expanded = along(2.0);
            Some(if expanded.0 < reflected.0 { expanded } else { reflected })
        } else if reflected.0 < simplex[worst - 1].0 {
            Some(reflected)
        } else {
            let contracted = along(if reflected.0 < simplex[worst].0 { 0.5 } else { -0.5 });
            Some(contracted).filter(|contracted| contracted.0 < simplex[worst].0.min(reflected.0))
        };
        match replacement {
            Some(replacement) => simplex[worst] = replacement,
            None => {
                let best = simplex[0].1.clone();
                for (_, point) in &mut simplex[1..] {
                    point.iter_mut().zip(&best).for_each(|(value, best)| *value = (*value + best) / 2.0);
                }
                simplex[1..].iter_mut().for_each(|(value, point)| *value = cost(point));
            }
        }
    }
    simplex.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).expect("one vertex at least").1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimum_of_a_bent_valley_is_found() {
        // Rosenbrock 1960.
        let valley = |p: &[f64]| (1.0 - p[0]).powi(2) + 100.0 * (p[1] - p[0] * p[0]).powi(2);
        let found = minimum(&[-1.2, 1.0], 0.5, valley);
        assert!((found[0] - 1.0).abs() < 1e-4 && (found[1] - 1.0).abs() < 1e-4, "{found:?}");
        let line = minimum(&[5.0], 1.0, |p| (p[0] - 2.0).abs());
        assert!((line[0] - 2.0).abs() < 1e-6, "{line:?}");
    }
}
