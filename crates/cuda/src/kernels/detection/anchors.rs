//! Reference boxes, a launch for each level.

use super::{Work, counts, doubles, float_output, for_each};
use crate::kgen::Operand;
use bessemer_ir::ops::detection::anchors::{AnchorPlacement, Anchors};

/// The coordinate `part` of the box of the cell that `i` is of, from `corner`, what the boxes of a cell have.
const COORDINATE: &str = "\
const u32 part = i % (4u * BOXES), cell = i / (4u * BOXES);
const double stride = part % 2u == 0u ? ACROSS : DOWN;
const u32 number = part % 2u == 0u ? cell % COLS : cell / COLS;
";

pub(crate) fn anchors(op: &Anchors) -> Work {
    let mut work = Work::new("anchors", 1);
    let all = 4 * op.count();
    let origin = match op.placement {
        AnchorPlacement::Centre => 0.5,
        AnchorPlacement::Corner => 0.0,
    };
    let mut first = 0;
    for level in &op.levels {
        let elements = 4 * level.boxes.len() * level.grid[0] * level.grid[1];
        let corners: Vec<f64> = level.boxes.iter().flatten().map(|corner| corner.0).collect();
        let last = corners.len() - 1;
        let of_part =
            corners[..last].iter().enumerate().map(|(part, corner)| format!("part == {part}u ? {corner:?} : "));
        let corner: String = of_part.chain([format!("{:?}", corners[last])]).collect();
        let text = counts(&[("BOXES", level.boxes.len()), ("COLS", level.grid[1]), ("FIRST", first)])
            + &doubles(&[("DOWN", level.stride[0].0), ("ACROSS", level.stride[1].0), ("ORIGIN", origin)])
            + COORDINATE
            + &format!("y[FIRST + i] = (float)(ORIGIN * stride + (double)number * stride + ({corner}));\n");
        work.launch(for_each("anchors", vec![float_output("y", all)], elements, &text), [Operand::Output(0)]);
        first += elements;
    }
    work
}
