"""ResNet with bottlenecks: pictures [N, H, W, C], kernels [H, W, I, O]."""

import jax
import jax.numpy as jnp
import numpy as np

EPS = 1e-5
KEPT = 0.9


def parameters(work):
    weights = {name: np.ascontiguousarray(array.transpose(2, 3, 1, 0)) if array.ndim == 4 else array
               for name, array in work.trained_weights().items()}
    weights["fc.weight"] = np.ascontiguousarray(weights["fc.weight"].T)
    return tuple({name: jnp.asarray(array) for name, array in tensors.items()} for tensors in (weights, work.statistics()))


def feeds(work, dtype):
    return [(jnp.asarray(images, dtype), labels) for images, labels in zip(work.images(), work.labels())]


def convolve(p, name, x, stride):
    kernel = p[f"{name}.weight"]
    padding = [(kernel.shape[0] // 2,) * 2] * 2
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


class Norms:
    """Batch norms by the batch's statistics, whose running means go to `moved`, or by `statistics`."""

    def __init__(self, p, statistics, is_training):
        self.p, self.statistics, self.is_training, self.moved = p, statistics, is_training, {}

    def __call__(self, name, x):
        wide = x.astype(jnp.float32)
        mean, variance = (self.statistics[f"{name}.running_{kind}"] for kind in ("mean", "var"))
        if self.is_training:
            means, variances = mean, variance
            mean, square = wide.mean((0, 1, 2)), jnp.square(wide).mean((0, 1, 2))
            variance = square - jnp.square(mean)
            count = x.size // x.shape[-1]
            self.moved[f"{name}.running_mean"] = KEPT * means + (1 - KEPT) * mean
            self.moved[f"{name}.running_var"] = KEPT * variances + (1 - KEPT) * variance * (count / (count - 1))
        scale = jax.lax.rsqrt(variance + EPS) * self.p[f"{name}.weight"]
        return ((wide - mean) * scale + self.p[f"{name}.bias"]).astype(x.dtype)


def bottleneck(p, norms, name, x, stride):
    inner = jax.nn.relu(norms(f"{name}.bn1", convolve(p, f"{name}.conv1", x, 1)))
    inner = jax.nn.relu(norms(f"{name}.bn2", convolve(p, f"{name}.conv2", inner, stride)))
    inner = norms(f"{name}.bn3", convolve(p, f"{name}.conv3", inner, 1))
    if f"{name}.downsample.0.weight" in p:
        x = norms(f"{name}.downsample.1", convolve(p, f"{name}.downsample.0", x, stride))
    return jax.nn.relu(inner + x)


def logits(p, norms, layers, x):
    x = jax.nn.relu(norms("bn1", convolve(p, "conv1", x, 2)))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    for stage, count in enumerate(layers):
        for block in range(count):
            x = bottleneck(p, norms, f"layer{stage + 1}.{block}", x, 2 if stage and block == 0 else 1)
    return x.mean((1, 2)) @ p["fc.weight"] + p["fc.bias"]


def loss(work, p, statistics, feeds, _key):
    """And the running statistics."""
    images, labels = feeds
    norms = Norms(p, statistics, is_training=True)
    scores = jax.nn.log_softmax(logits(p, norms, work.sizes.layers, images).astype(jnp.float32))
    smoothing = work.training.label_smoothing
    right = jnp.take_along_axis(scores, labels[:, None], 1)[:, 0]
    value = -((1 - smoothing) * right + smoothing * scores.mean(1)).mean()
    return value, norms.moved


def infer(work, p, statistics, feeds):
    return (logits(p, Norms(p, statistics, is_training=False), work.sizes.layers, feeds[0]),)
