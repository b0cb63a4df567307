"""Writes the fixture of pasted masks of crates/metrics: grids of probabilities on boxes, as torchvision puts them into images.

The result depends on nothing but this script and the versions of torch, torchvision and pycocotools.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from pycocotools import mask as coco
from torchvision.models.detection.roi_heads import paste_masks_in_image

FIXTURE = Path(__file__).resolve().parents[2] / "crates" / "metrics" / "tests" / "fixtures" / "pasted.json"
SIDE, THRESHOLD = 7, 0.35
IMAGE = (40, 60)
BOXES = [
    [10.0, 5.0, 40.0, 30.0],
    [10.3, 5.8, 23.9, 11.2],
    [-12.5, -7.25, 20.0, 18.0],
    [45.5, 30.25, 75.0, 52.0],
    [20.2, 10.2, 20.4, 10.3],
    [0.0, 0.0, 60.0, 40.0],
    [3.0, 12.0, 57.0, 14.5],
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FIXTURE, help="the file (default: that of crates/metrics)")
    out = parser.parse_args().out
    generator = torch.Generator().manual_seed(1707)
    cases = []
    for box in BOXES:
        # Values that are exact in f32.
        grid = torch.randint(0, 257, (SIDE, SIDE), generator=generator).double() / 256
        grid = (grid + grid.roll(1, 0) + grid.roll(1, 1)) / 4
        pasted = paste_masks_in_image(grid[None, None], torch.tensor([box], dtype=torch.float64), IMAGE)[0, 0]
        runs = coco.encode(np.asfortranarray((pasted > THRESHOLD).numpy().astype(np.uint8)))
        cases.append({"box": box, "grid": grid.flatten().tolist(), "counts": runs["counts"].decode()})
    out.parent.mkdir(parents=True, exist_ok=True)
    text = ",\n  ".join(json.dumps(case) for case in cases)
    out.write_text(f'{{"size": {list(IMAGE)}, "threshold": {THRESHOLD}, "cases": [\n  {text}\n]}}\n')


if __name__ == "__main__":
    main()
