"""Compares detections of a checkpoint of NVIDIA's Mask R-CNN for TensorFlow 2 with those of Bessemer on the same picture.

    python check_mask_rcnn.py make SAMPLE photo.jpg work/      SAMPLE is the folder of the sample, which has `mrcnn_tf2` in it
    bessemer infer mask-rcnn work/photo.png --weights work/nvidia_mrcnn_tf2.ckpt --score 0 --out work/ours
    python check_mask_rcnn.py check work/

`make` draws weights at random, saves them as the sample does, and writes what it detects in the picture, which is resized to the
recipe's 832x1344 pixels. Needs, beside the requirements of this folder, tf-keras 2.21, Pillow and pycocotools.
"""

import argparse
import json
import os
import sys
from argparse import Namespace
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 832, 1344
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
# Factors of the usual deviation of a kernel, by a part of its name: enough for outputs that differ from region to region.
SPREADS = {"box-predict": 0.5, "rpn-box": 0.5, "predict": 1.5, "rpn-class": 1.5, "logits": 1.5, "": 1.2}


def draw(variable, numbers):
    name, shape = variable.name, variable.shape
    if "moving_variance" in name:
        return numbers.uniform(0.5, 1.5, shape)
    if "gamma" in name:
        return numbers.uniform(0.4, 0.9, shape)
    if "kernel" not in name:
        return numbers.standard_normal(shape) * 0.1
    inputs = shape[0] * shape[1] * shape[3] if "conv5-mask" in name else np.prod(shape[:-1])
    spread = next(value for part, value in SPREADS.items() if part in name)
    return numbers.standard_normal(shape) * spread / np.sqrt(inputs)


def make(sample, picture, folder):
    sys.path.insert(0, str(sample))
    import tensorflow as tf
    from mrcnn_tf2.config import CONFIG
    from mrcnn_tf2.model.mask_rcnn import MaskRCNN

    folder.mkdir(parents=True, exist_ok=True)
    pixels = Image.open(picture).convert("RGB").resize((WIDTH, HEIGHT), Image.BICUBIC)
    pixels.save(folder / "photo.png")
    image = (np.asarray(pixels, np.float32) / 255 - np.float32(MEAN)) / np.float32(DEVIATION)
    model = MaskRCNN(Namespace(**vars(CONFIG), train_batch_size=1, l2_weight_decay=0.0))
    info = tf.constant([[HEIGHT, WIDTH, 1.0, HEIGHT, WIDTH]], tf.float32)
    inputs = {"images": tf.constant(image[None]), "image_info": info, "source_ids": tf.constant([1.0])}
    model(dict(inputs), training=False)
    numbers = np.random.default_rng(11)
    for variable in model.variables:
        variable.assign(draw(variable, numbers))
    model.save_weights(folder / CONFIG.checkpoint_name_format)
    outputs = model(dict(inputs), training=False)
    np.savez(folder / "theirs.npz", **{name: value.numpy() for name, value in outputs.items()})


def resize(values, height, width):
    """Bilinear, between the centres of cells, without antialiasing."""

    def axis(length):
        cells = len(values)
        place = np.clip((np.arange(length) + 0.5) * cells / length - 0.5, 0, None)
        first = np.minimum(place.astype(int), cells - 1)
        return first, np.minimum(first + 1, cells - 1), place - first

    top, bottom, down = axis(height)
    left, right, across = axis(width)
    rows = values[top] * (1 - down)[:, None] + values[bottom] * down[:, None]
    return rows[:, left] * (1 - across) + rows[:, right] * across


def pasted(mask, box):
    """A mask of 28x28 probabilities in the picture: with a border of zeros, and corners that are truncated to pixels."""
    padded = np.pad(mask, 1)
    y0, x0, y1, x1 = box
    factor = len(padded) / len(mask) / 2
    half = [(x1 - x0) * factor, (y1 - y0) * factor]
    centre = [(x0 + x1) / 2, (y0 + y1) / 2]
    left, top = (int(c - h) for c, h in zip(centre, half))
    right, bottom = (int(c + h) for c, h in zip(centre, half))
    inside = resize(padded, max(bottom - top + 1, 1), max(right - left + 1, 1)) > 0.5
    whole = np.zeros((HEIGHT, WIDTH), bool)
    rows, columns = slice(max(top, 0), min(bottom + 1, HEIGHT)), slice(max(left, 0), min(right + 1, WIDTH))
    whole[rows, columns] = inside[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
    return whole


def check(folder):
    from pycocotools import mask as masks

    theirs = np.load(folder / "theirs.npz")
    ours = json.loads((folder / "ours/results.json").read_text())
    count = int(theirs["num_detections"][0])
    fields = ["boxes", "scores", "classes", "masks"]
    errors = []
    for box, score, category, mask in zip(*(theirs[f"detection_{name}"][0][:count] for name in fields)):
        y0, x0, y1, x1 = box
        same = [one for one in ours if one["category_id"] == int(category)]
        distance = lambda one: np.abs(np.subtract(one["bbox"], [x0, y0, x1 - x0, y1 - y0])).max()
        nearest = min(same, key=distance, default=None)
        if nearest is None or distance(nearest) > 1:
            sys.exit(f"no box near {box} of category {category} with a score of {score}")
        ours.remove(nearest)
        different = (masks.decode(nearest["segmentation"]) > 0) != pasted(mask, box)
        errors.append([distance(nearest), abs(nearest["score"] - score), different.sum()])
    box, score, pixels = np.max(errors, axis=0)
    print(f"{count} detections; largest differences: box {box:.1e} pixels, score {score:.1e}, mask {pixels:.0f} pixels")
    if ours or box > 0.01 or score > 1e-4 or pixels > 10:
        sys.exit(f"too much, or detections that the sample has not: {len(ours)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make")
    for name in ["sample", "picture", "folder"]:
        maker.add_argument(name, type=Path)
    commands.add_parser("check").add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "make":
        make(arguments.sample, arguments.picture, arguments.folder)
    else:
        check(arguments.folder)
