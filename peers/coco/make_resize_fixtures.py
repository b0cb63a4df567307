#!/usr/bin/env python3
"""Writes the fixture of two-tap resizing that a test of crates/data compares with. Needs numpy and torch:

    python make_resize_fixtures.py ../../crates/data/tests/fixtures/detection/resize.json

With --tensorflow (and TensorFlow installed) the legacy rule is compared with tf.compat.v1.image.resize_bilinear instead, and
the half-pixel one with tf.image.resize.
"""

import argparse
import json
import pathlib

import numpy as np

HEIGHT, WIDTH = 11, 17
# Height and width after scaling, offset of the crop (rows, columns), size of the crop, and whether it is mirrored.
CASES = [
    ((11, 17), (0, 0), (11, 17), False),
    ((11, 17), (0, 0), (11, 17), True),
    ((5, 8), (0, 0), (5, 8), False),
    ((5, 8), (0, 0), (5, 8), True),
    ((23, 36), (4, 9), (16, 16), False),
    ((23, 36), (4, 9), (16, 16), True),
    ((23, 36), (7, 20), (16, 16), True),
    ((1, 2), (0, 0), (1, 2), True),
    ((3, 31), (0, 12), (3, 16), False),
]


def legacy(image, size):
    """TensorFlow 1: source = index * scale, the two nearest pixels of each axis, no corner alignment, in float32."""
    taps = []
    for axis, count in enumerate(size):
        scale = np.float32(image.shape[axis]) / np.float32(count)
        place = np.arange(count, dtype=np.float32) * scale
        low = np.floor(place).astype(int)
        taps.append((low, np.minimum(low + 1, image.shape[axis] - 1), (place - low).astype(np.float32)))
    (top, bottom, dy), (left, right, dx) = taps
    dy, dx = dy[:, None, None], dx[None, :, None]
    rows = [image[y][:, left] + (image[y][:, right] - image[y][:, left]) * dx for y in (top, bottom)]
    return rows[0] + (rows[1] - rows[0]) * dy


def half_pixel(image, size):
    import torch

    planes = torch.from_numpy(image).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(planes, size=size, mode="bilinear", align_corners=False, antialias=False)
    return resized[0].permute(1, 2, 0).numpy()


def compare_with_tensorflow(image):
    import tensorflow as tf

    for size, *_ in CASES:
        v1 = tf.compat.v1.image.resize_bilinear(image[None], size)[0].numpy()
        v2 = tf.image.resize(image[None], size, method="bilinear", antialias=False)[0].numpy()
        differences = [float(np.abs(v1 - legacy(image, size)).max())]
        try:
            differences.append(float(np.abs(v2 - half_pixel(image, size)).max()))
        except ModuleNotFoundError:
            differences.append(None)
        print(size, "legacy, half-pixel:", differences)
        assert all(d is None or d < 1e-3 for d in differences)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, nargs="?")
    parser.add_argument("--tensorflow", action="store_true")
    options = parser.parse_args()
    image = np.random.default_rng(7).integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.float32)
    if options.tensorflow:
        compare_with_tensorflow(image)
    if options.out is None:
        return
    cases = []
    for name, rule in (("legacy", legacy), ("half_pixel", half_pixel)):
        for size, (top, left), (rows, columns), flipped in CASES:
            source = np.ascontiguousarray(image[:, ::-1]) if flipped else image
            shown = rule(source, size)[top : top + rows, left : left + columns]
            values = [round(float(value), 3) for value in shown.reshape(-1)]
            case = {"rule": name, "scaled": size, "offset": (top, left), "shown": (rows, columns), "flipped": flipped}
            cases.append({**case, "expected": values})
    pixels = image.astype(int).reshape(-1).tolist()
    options.out.write_text(json.dumps({"size": (HEIGHT, WIDTH), "pixels": pixels, "cases": cases}) + "\n")


if __name__ == "__main__":
    main()
