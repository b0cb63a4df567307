#!/usr/bin/env python3
"""Reads the shards of `bessemer data prepare coco` with TensorFlow and compares them with the annotations they were made of.

    bessemer data prepare coco --images DIR --annotations JSON --shards 4 --masks OUT
    python read_coco_records.py JSON DIR OUT/train-*.tfrecord

Needs tensorflow and numpy. Boxes are to be equal within 1e-6 of the image's side, masks pixel by pixel where the annotation is a
list of run lengths or pycocotools is installed.
"""

import argparse
import hashlib
import json
import pathlib

import numpy as np
import tensorflow as tf

FEATURES = {
    "image/height": tf.io.FixedLenFeature([], tf.int64),
    "image/width": tf.io.FixedLenFeature([], tf.int64),
    "image/filename": tf.io.FixedLenFeature([], tf.string),
    "image/source_id": tf.io.FixedLenFeature([], tf.string),
    "image/key/sha256": tf.io.FixedLenFeature([], tf.string),
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/format": tf.io.FixedLenFeature([], tf.string),
    "image/object/bbox/xmin": tf.io.VarLenFeature(tf.float32),
    "image/object/bbox/xmax": tf.io.VarLenFeature(tf.float32),
    "image/object/bbox/ymin": tf.io.VarLenFeature(tf.float32),
    "image/object/bbox/ymax": tf.io.VarLenFeature(tf.float32),
    "image/object/class/text": tf.io.VarLenFeature(tf.string),
    "image/object/class/label": tf.io.VarLenFeature(tf.int64),
    "image/object/is_crowd": tf.io.VarLenFeature(tf.int64),
    "image/object/area": tf.io.VarLenFeature(tf.float32),
    "image/object/mask": tf.io.VarLenFeature(tf.string),
}


def mask_of(annotation, height, width):
    """The mask that an annotation states, or None where there is no way to tell."""
    segmentation = annotation.get("segmentation")
    if isinstance(segmentation, dict) and isinstance(segmentation["counts"], list):
        values = np.repeat(np.arange(len(segmentation["counts"])) % 2, segmentation["counts"])
        return values.reshape(width, height).T
    try:
        from pycocotools import mask
    except ModuleNotFoundError:
        return None
    if isinstance(segmentation, list):
        return mask.decode(mask.merge(mask.frPyObjects(segmentation, height, width)))
    return mask.decode(segmentation)


def expected_objects(annotations, categories, width, height):
    for annotation in annotations:
        x, y, w, h = annotation["bbox"]
        x1, y1, x2, y2 = max(x, 0), max(y, 0), min(x + w, width), min(y + h, height)
        if x1 < x2 and y1 < y2:
            yield annotation, (x1 / width, y1 / height, x2 / width, y2 / height), categories[annotation["category_id"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("annotations", type=pathlib.Path)
    parser.add_argument("images", type=pathlib.Path)
    parser.add_argument("shards", nargs="+")
    options = parser.parse_args()
    data = json.loads(options.annotations.read_text())
    images = {image["id"]: image for image in data["images"]}
    categories = {category["id"]: category["name"] for category in data["categories"]}
    objects = {}
    for annotation in data["annotations"]:
        objects.setdefault(annotation["image_id"], []).append(annotation)
    order = sorted(images)
    seen, boxes, masks = set(), 0, 0
    for number, shard in enumerate(sorted(options.shards)):
        for record, payload in enumerate(tf.data.TFRecordDataset(shard)):
            example = tf.io.parse_single_example(payload, FEATURES)
            found = {
                name: tf.sparse.to_dense(value).numpy() if isinstance(value, tf.SparseTensor) else value.numpy()
                for name, value in example.items()
            }
            image_id = int(found["image/source_id"])
            image = images[image_id]
            assert order[number + record * len(options.shards)] == image_id, "records go round robin over the shards"
            width, height = image["width"], image["height"]
            assert (found["image/width"], found["image/height"]) == (width, height)
            encoded = (options.images / image["file_name"]).read_bytes()
            assert found["image/encoded"] == encoded and found["image/filename"].decode() == image["file_name"]
            assert found["image/key/sha256"].decode() == hashlib.sha256(encoded).hexdigest()
            assert tf.io.decode_image(found["image/encoded"], channels=3).shape == (height, width, 3)
            expected = list(expected_objects(objects.get(image_id, []), categories, width, height))
            assert len(found["image/object/class/label"]) == len(expected), image_id
            for index, (annotation, sides, name) in enumerate(expected):
                stored = [found[f"image/object/bbox/{side}"][index] for side in ("xmin", "ymin", "xmax", "ymax")]
                assert np.abs(np.subtract(stored, sides)).max() < 1e-6, (image_id, stored, sides)
                assert found["image/object/class/label"][index] == annotation["category_id"]
                assert found["image/object/class/text"][index].decode() == name
                assert found["image/object/is_crowd"][index] == annotation.get("iscrowd", 0)
                assert np.isclose(found["image/object/area"][index], annotation["area"], rtol=1e-6)
                boxes += 1
                if len(found["image/object/mask"]) > 0:
                    bitmap = tf.io.decode_png(found["image/object/mask"][index], channels=1).numpy()[..., 0]
                    truth = mask_of(annotation, height, width)
                    assert bitmap.shape == (height, width) and bitmap.max() <= 1
                    if truth is not None:
                        assert (bitmap == truth).all(), (image_id, annotation["id"])
                        masks += 1
            seen.add(image_id)
    assert seen == set(images), "every image once"
    print(f"{len(seen)} images, {boxes} boxes and {masks} masks are equal")


if __name__ == "__main__":
    main()
