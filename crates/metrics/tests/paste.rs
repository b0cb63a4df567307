//! Masks of networks in images, compared with torchvision's.

use bessemer_metrics::mask::{MaskError, Rle};
use serde_json::Value;

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

#[test]
fn grids_are_pasted_as_torchvision_does() {
    let fixture: Value = serde_json::from_str(include_str!("fixtures/pasted.json")).expect("a JSON file");
    let [height, width] = [0, 1].map(|axis| numbers(&fixture["size"])[axis] as u32);
    let threshold = fixture["threshold"].as_f64().expect("a number") as f32;
    let mut areas = Vec::new();
    for case in fixture["cases"].as_array().expect("a list") {
        let grid: Vec<f32> = numbers(&case["grid"]).into_iter().map(|value| value as f32).collect();
        let bbox = numbers(&case["box"]).try_into().expect("four numbers");
        let mask = Rle::from_grid(height, width, &grid, bbox, threshold).expect("a legal grid");
        assert_eq!(mask.compressed(), case["counts"].as_str().expect("a text"), "{bbox:?}");
        areas.push(mask.area());
    }
    assert!(areas.iter().filter(|area| **area > 0).count() >= 6, "{areas:?}");
}

#[test]
fn bad_grids_are_refused() {
    let paste = |grid: &[f32], bbox: [f64; 4]| Rle::from_grid(4, 4, grid, bbox, 0.5);
    assert_eq!(paste(&[1.0; 6], [0.0, 0.0, 2.0, 2.0]), Err(MaskError::Grid { cells: 6 }));
    assert!(matches!(paste(&[1.0], [0.0, f64::NAN, 2.0, 2.0]), Err(MaskError::Box { .. })));
    assert!(matches!(paste(&[1.0], [0.0, 0.0, 2.0, f64::INFINITY]), Err(MaskError::Box { .. })));
    let far = paste(&[1.0], [1e18, 1e18, 2e18, 2e18]).expect("a box outside the image");
    assert_eq!(far.counts(), [16]);
    assert!(Rle::from_grid(0, 4, &[1.0], [0.0; 4], 0.5).is_err());
}
