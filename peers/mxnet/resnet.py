"""ResNet with bottlenecks: pictures [N, C, H, W], which oneDNN's kernels lay out as they like."""

import numpy as np
from mxnet import sym

EPS = 1e-5


def parameters(work):
    return work.trained_weights(), work.statistics()


def inputs(work):
    return [{"images": np.ascontiguousarray(images.transpose(0, 3, 1, 2))} for images in work.images()]


def feeds(work):
    return [dict(images, labels=labels) for images, labels in zip(inputs(work), work.labels())]


class Network:
    """The graph of the logits."""

    def __init__(self, work):
        self.weights, self.layers, self.classes = work.weights, work.sizes.layers, work.sizes.classes

    def convolve(self, name, x, stride):
        outputs, _, side, _ = self.weights[f"{name}.weight"].shape
        return sym.Convolution(x, sym.var(f"{name}.weight"), no_bias=True, num_filter=outputs, kernel=(side, side),
                               stride=(stride, stride), pad=(side // 2, side // 2))

    def norm(self, name, x):
        kinds = ("weight", "bias", "running_mean", "running_var")
        return sym.BatchNorm(x, *(sym.var(f"{name}.{kind}") for kind in kinds), eps=EPS, momentum=0.9, fix_gamma=False)

    def rectified(self, name, x):
        return sym.Activation(self.norm(name, x), act_type="relu")

    def bottleneck(self, name, x, stride):
        inner = self.rectified(f"{name}.bn1", self.convolve(f"{name}.conv1", x, 1))
        inner = self.rectified(f"{name}.bn2", self.convolve(f"{name}.conv2", inner, stride))
        inner = self.norm(f"{name}.bn3", self.convolve(f"{name}.conv3", inner, 1))
        if f"{name}.downsample.0.weight" in self.weights:
            x = self.norm(f"{name}.downsample.1", self.convolve(f"{name}.downsample.0", x, stride))
        return sym.Activation(inner + x, act_type="relu")

    def logits(self):
        x = self.rectified("bn1", self.convolve("conv1", sym.var("images"), 2))
        x = sym.Pooling(x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max")
        for stage, count in enumerate(self.layers):
            for block in range(count):
                x = self.bottleneck(f"layer{stage + 1}.{block}", x, 2 if stage and block == 0 else 1)
        x = sym.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1))
        return sym.FullyConnected(x, sym.var("fc.weight"), sym.var("fc.bias"), num_hidden=self.classes)


def loss(work):
    scores, smoothing = sym.log_softmax(Network(work).logits()), work.training.label_smoothing
    right = sym.pick(scores, sym.var("labels"))
    return sym.mean(-(1 - smoothing) * right - smoothing * sym.mean(scores, axis=1))


def outputs(work):
    return (Network(work).logits(),)
