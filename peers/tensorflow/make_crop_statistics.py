"""Writes crates/data/tests/fixtures/resize/crops.json: means over random crops that TensorFlow draws.

    pip install tensorflow-cpu
    python peers/tensorflow/make_crop_statistics.py
"""

import json
import pathlib

import numpy as np
import tensorflow as tf

DRAWS = 20_000
TARGET = pathlib.Path(__file__).parents[2] / "crates/data/tests/fixtures/resize/crops.json"


def draw(height, width, objects):
    """Crops `[DRAWS, 4]` of an image: top, left, height and width as fractions of its sides.

    `objects`: boxes `[x1, y1, x2, y2]` as fractions of them."""
    boxes = tf.reshape(tf.constant([[y1, x1, y2, x2] for x1, y1, x2, y2 in objects], tf.float32), [1, -1, 4])

    def one(_):
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            [height, width, 3],
            boxes,
            min_object_covered=0.1,
            aspect_ratio_range=[0.75, 1.33],
            area_range=[0.05, 1.0],
            max_attempts=100,
            use_image_if_no_bounding_boxes=True,
        )
        return tf.stack([begin[0], begin[1], size[0], size[1]])

    tf.random.set_seed(1)
    drawn = tf.function(lambda: tf.map_fn(one, tf.range(DRAWS)))().numpy()
    return drawn / np.array([height, width, height, width])


def main():
    cases = []
    small, flat, two = [0.05, 0.6, 0.2, 0.9], [0.3, 0.5, 0.8, 0.5], [[0.0, 0.0, 0.1, 0.1], [0.5, 0.2, 1.0, 0.5]]
    for height, width, objects in [
        (375, 500, []),
        (200, 64, []),
        (40, 40, []),
        (375, 500, [small]),
        (375, 500, [flat]),
        (375, 500, [flat, small]),
        (333, 250, two),
    ]:
        top, left, rows, columns = draw(height, width, objects).T
        area = rows * columns
        means = {"area": area.mean(), "rows": rows.mean(), "columns": columns.mean(), "top": top.mean(), "left": left.mean()}
        cases.append({"size": [height, width], "objects": objects, "least_area": round(area.min(), 4), **{k: round(v, 4) for k, v in means.items()}})
    TARGET.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


main()
