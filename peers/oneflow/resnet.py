"""ResNet with bottlenecks: pictures [N, C, H, W]."""

import numpy as np
import oneflow as flow
from module import Module
from oneflow.nn import functional as F


class ResNet(Module):
    def __init__(self, work):
        super().__init__(work, work.trained_weights(), work.statistics())

    def inputs(self):
        return [[np.ascontiguousarray(images.transpose(0, 3, 1, 2))] for images in self.work.images()]

    def feeds(self):
        return [[*inputs, labels.astype(np.int64)] for inputs, labels in zip(self.inputs(), self.work.labels())]

    def convolve(self, name, x, stride):
        kernel = self.tensor(f"{name}.weight")
        return F.conv2d(x, kernel, stride=stride, padding=kernel.shape[2] // 2)

    def norm(self, name, x):
        kinds = ("running_mean", "running_var", "weight", "bias")
        mean, variance, scale, offset = (self.tensor(f"{name}.{kind}") for kind in kinds)
        return flow._C.normalization(x, mean, variance, scale, offset, axis=1, epsilon=1e-5, momentum=0.9, is_training=self.training)

    def bottleneck(self, name, x, stride):
        inner = F.relu(self.norm(f"{name}.bn1", self.convolve(f"{name}.conv1", x, 1)))
        inner = F.relu(self.norm(f"{name}.bn2", self.convolve(f"{name}.conv2", inner, stride)))
        inner = self.norm(f"{name}.bn3", self.convolve(f"{name}.conv3", inner, 1))
        if f"{name}.downsample.0.weight" in self.weights:
            x = self.norm(f"{name}.downsample.1", self.convolve(f"{name}.downsample.0", x, stride))
        return F.relu(inner + x)

    def forward(self, x):
        return (self.logits(x),)

    def logits(self, x):
        x = F.relu(self.norm("bn1", self.convolve("conv1", x, 2)))
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        for stage, count in enumerate(self.work.sizes.layers):
            for block in range(count):
                x = self.bottleneck(f"layer{stage + 1}.{block}", x, 2 if stage and block == 0 else 1)
        return F.linear(x.mean(dim=(2, 3)), self.tensor("fc.weight"), self.tensor("fc.bias"))

    def loss(self, images, labels):
        scores, smoothing = F.log_softmax(self.logits(images), dim=1), self.work.training.label_smoothing
        right = flow.gather(scores, 1, labels.unsqueeze(1)).squeeze(1)
        return (-(1 - smoothing) * right - smoothing * scores.mean(dim=1)).mean()
