"""ResNet with bottlenecks: pictures [N, C, H, W], which oneDNN's kernels of the CPU lay out as they like."""

import numpy as np
from module import Module
from paddle.nn import functional as F


class ResNet(Module):
    def __init__(self, work):
        weights = work.trained_weights()
        weights["fc.weight"] = np.ascontiguousarray(weights["fc.weight"].T)
        super().__init__(work, weights, work.statistics())

    def inputs(self):
        return [[np.ascontiguousarray(images.transpose(0, 3, 1, 2))] for images in self.work.images()]

    def feeds(self):
        return [[*inputs, labels.astype(np.int64)] for inputs, labels in zip(self.inputs(), self.work.labels())]

    def convolve(self, name, x, stride):
        kernel = self.weights[f"{name}.weight"]
        return F.conv2d(x, kernel, stride=stride, padding=kernel.shape[2] // 2)

    def norm(self, name, x):
        mean, variance = (self.statistics[f"{name}.running_{kind}"] for kind in ("mean", "var"))
        scale, offset = (self.weights[f"{name}.{kind}"] for kind in ("weight", "bias"))
        return F.batch_norm(x, mean, variance, scale, offset, training=self.training, momentum=0.9, epsilon=1e-5)

    def bottleneck(self, name, x, stride):
        inner = F.relu(self.norm(f"{name}.bn1", self.convolve(f"{name}.conv1", x, 1)))
        inner = F.relu(self.norm(f"{name}.bn2", self.convolve(f"{name}.conv2", inner, stride)))
        inner = self.norm(f"{name}.bn3", self.convolve(f"{name}.conv3", inner, 1))
        if f"{name}.downsample.0.weight" in self.weights:
            x = self.norm(f"{name}.downsample.1", self.convolve(f"{name}.downsample.0", x, stride))
        return F.relu(inner + x)

    def forward(self, x):
        x = F.relu(self.norm("bn1", self.convolve("conv1", x, 2)))
        x = F.max_pool2d(x, 3, 2, 1)
        for stage, count in enumerate(self.work.sizes.layers):
            for block in range(count):
                x = self.bottleneck(f"layer{stage + 1}.{block}", x, 2 if stage and block == 0 else 1)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return (F.linear(x, self.weights["fc.weight"], self.weights["fc.bias"]),)

    def loss(self, images, labels):
        return F.cross_entropy(self(images)[0], F.label_smooth(F.one_hot(labels, self.work.sizes.classes),
                               epsilon=self.work.training.label_smoothing), soft_label=True)
