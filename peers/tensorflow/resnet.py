"""ResNet with bottlenecks: pictures [N, H, W, C], kernels [H, W, I, O]."""

import numpy as np
import tensorflow as tf

EPS = 1e-5
KEPT = 0.9


def parameters(work):
    weights = {name: np.ascontiguousarray(array.transpose(2, 3, 1, 0)) if array.ndim == 4 else array
               for name, array in work.trained_weights().items()}
    weights["fc.weight"] = np.ascontiguousarray(weights["fc.weight"].T)
    return weights, work.statistics()


def feeds(work, dtype):
    return [(tf.cast(images, dtype), labels) for images, labels in zip(work.images(), work.labels())]


def convolve(p, name, x, stride):
    kernel = p[f"{name}.weight"]
    pad = kernel.shape[0] // 2
    return tf.nn.conv2d(x, kernel, stride, [[0, 0], [pad, pad], [pad, pad], [0, 0]])


class Norms:
    """Batch norms by the batch's statistics, which move the running ones, or by `statistics`."""

    def __init__(self, p, statistics, is_training):
        self.p, self.statistics, self.is_training = p, statistics, is_training

    def __call__(self, name, x):
        scale, offset = (tf.cast(self.p[f"{name}.{part}"], tf.float32) for part in ("weight", "bias"))
        running = [self.statistics[f"{name}.running_{part}"] for part in ("mean", "var")]
        given = ([], []) if self.is_training else running
        y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=scale, offset=offset, mean=given[0], variance=given[1], epsilon=EPS, is_training=self.is_training)
        if self.is_training:
            for statistic, value in zip(running, (mean, variance)):
                statistic.assign(KEPT * statistic + (1 - KEPT) * value)
        return y


def bottleneck(p, norms, name, x, stride):
    inner = tf.nn.relu(norms(f"{name}.bn1", convolve(p, f"{name}.conv1", x, 1)))
    inner = tf.nn.relu(norms(f"{name}.bn2", convolve(p, f"{name}.conv2", inner, stride)))
    inner = norms(f"{name}.bn3", convolve(p, f"{name}.conv3", inner, 1))
    if f"{name}.downsample.0.weight" in p:
        x = norms(f"{name}.downsample.1", convolve(p, f"{name}.downsample.0", x, stride))
    return tf.nn.relu(inner + x)


def logits(p, norms, layers, x):
    x = tf.nn.relu(norms("bn1", convolve(p, "conv1", x, 2)))
    # Past the activation nothing is below the zeros of the padding.
    x = tf.nn.max_pool2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, "VALID")
    for stage, count in enumerate(layers):
        for block in range(count):
            x = bottleneck(p, norms, f"layer{stage + 1}.{block}", x, 2 if stage and block == 0 else 1)
    return tf.reduce_mean(x, (1, 2)) @ p["fc.weight"] + p["fc.bias"]


def loss(work, p, statistics, feeds):
    images, labels = feeds
    scores = tf.cast(logits(p, Norms(p, statistics, True), work.sizes.layers, images), tf.float32)
    smoothing, classes = work.training.label_smoothing, work.sizes.classes
    targets = tf.one_hot(labels, classes, 1 - smoothing + smoothing / classes, smoothing / classes)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(targets, scores))


def infer(work, p, statistics, feeds):
    return (logits(p, Norms(p, statistics, False), work.sizes.layers, feeds[0]),)
