"""Writes the checkpoints that crates/weights reads in its tests.

Element i of a variable is (i - 3) / 2 if it is a float, else i, or i modulo 2 if it is a bool, so that the tests know all numbers. The
output depends on nothing but this script and the version of TensorFlow.
"""

import argparse
import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf

FIXTURES = Path(__file__).parents[2] / "crates/weights/tests/fixtures/tensorflow_files"

FLOATS = ["float32", "float64", "float16", "bfloat16"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"]
# Names and shapes of layers that the zoo has, and of one that it has not.
LAYERS = {
    "resnet50/conv2d/conv2d/kernel": [1, 2, 3, 4],
    "resnet50/conv2d/BatchNorm/moving_variance": [4],
    "resnet50/output/dense/kernel": [2, 3],
    "stack_0/block_0/depthwise_conv2d/depthwise_kernel": [2, 3, 4, 1],
    "other/kernel": [2, 3],
}


def numbers(dtype, shape, offset=0.0):
    i = np.arange(np.prod(shape, dtype=int))
    is_float = tf.as_dtype(dtype).is_floating
    values = (i - 3) / 2 + offset if is_float else i % 2 if dtype == "bool" else i
    return tf.cast(tf.constant(values.reshape(shape)), dtype)


def by_names(folder):
    """A checkpoint of TensorFlow 1 in one file, and one in two."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        for dtype in [*FLOATS, *INTEGERS, "bool"]:
            v1.get_variable(f"types/{dtype}", initializer=numbers(dtype, [5]))
        v1.get_variable("types/scalar", initializer=tf.constant(0.5))
        v1.get_variable("types/empty", initializer=tf.zeros([0, 3]))
        v1.get_variable("types/text", initializer=tf.constant(["left", "out"]))
        trained = [v1.get_variable(name, initializer=numbers("float32", shape)) for name, shape in LAYERS.items()]
        step = v1.train.get_or_create_global_step()
        average = v1.train.ExponentialMovingAverage(0.0)
        loss = tf.add_n([tf.reduce_sum(v) for v in trained])
        updates = [v1.train.AdamOptimizer(0.0).minimize(loss, step), v1.train.MomentumOptimizer(0.0, 0.9).minimize(loss)]
        # Averages are one more than what they are of.
        shadow = average.apply(trained[:2])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(updates)
            session.run(shadow)
            session.run([v1.assign_add(average.average(v), tf.ones(v.shape)) for v in trained[:2]])
            v1.train.Saver().save(session, str(folder / "names/model.ckpt-7"), write_meta_graph=False)
    with tf.Graph().as_default():
        for place, name in [(0, "a"), (1, "b"), (0, "c")]:
            with tf.device(f"/cpu:{place}"):
                v1.get_variable(name, initializer=numbers("float32", [3], float(ord(name))))
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(v1.global_variables_initializer())
            saver = v1.train.Saver(sharded=True)
            saver.save(session, str(folder / "shards/model"), write_meta_graph=False, write_state=False)


class Layer(tf.Module):
    def __init__(self, full_name, shape):
        super().__init__()
        self.kernel = tf.Variable(numbers("float32", shape), name=full_name)


def by_objects(folder):
    """A checkpoint of TensorFlow 2 with what an optimizer keeps, and a SavedModel."""
    model = tf.Module()
    model.layers = [Layer(name, shape) for name, shape in LAYERS.items()]
    model.twins = [Layer("twin", [2]), Layer("twin", [3])]
    model.flag = tf.Variable(True, name="flag")
    model.alias = model.layers[0]
    optimizer = tf.compat.v1.train.MomentumOptimizer(0.0, 0.9)
    kernels = [layer.kernel for layer in model.layers]
    optimizer.apply_gradients([(tf.ones_like(kernel), kernel) for kernel in kernels])
    optimizer._get_or_make_slot(kernels[0], kernels[0] + 1.0, "average", "average")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=tf.Variable(5, dtype=tf.int64))
    checkpoint.save(str(folder / "objects/ckpt"))
    tf.saved_model.save(model, str(folder / "saved_model"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FIXTURES)
    folder = parser.parse_args().out
    shutil.rmtree(folder, ignore_errors=True)
    for name in ["names", "shards", "objects"]:
        (folder / name).mkdir(parents=True)
    by_names(folder)
    by_objects(folder)
    # The name of a folder that is elsewhere by now, and a program, which is not read.
    (folder / "names/checkpoint").write_text('model_checkpoint_path: "/elsewhere/model.ckpt-7"\n')
    (folder / "saved_model/saved_model.pb").write_bytes(b"")
    (folder / "saved_model/fingerprint.pb").unlink()
    (folder / "saved_model/assets").rmdir()


if __name__ == "__main__":
    main()
