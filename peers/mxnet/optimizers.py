"""SGD with momentum, and AdamW, by MXNet's kernels for many tensors at once."""

import mxnet as mx
from peer.work import Cannot

# Tensors that a kernel takes at once.
MANY = 32


def of(work, weights, gradients):
    kinds = {"sgd": Sgd, "adamw": AdamW}
    if work.training.optimizer not in kinds:
        raise Cannot(f"optimizer {work.training.optimizer} is none of {', '.join(kinds)}")
    return kinds[work.training.optimizer](work, weights, gradients)


def zeros(tensors):
    return [mx.nd.zeros(tensor.shape) for tensor in tensors]


class Optimizer:
    def __init__(self, work, weights, gradients):
        self.training, self.names = work.training, list(weights)
        self.weights, self.gradients = ([tensors[name] for name in self.names] for tensors in (weights, gradients))
        self.decays = [work.decay(name) for name in self.names]
        self.parts = [slice(start, start + MANY) for start in range(0, len(self.names), MANY)]


class Sgd(Optimizer):
    def __init__(self, *given):
        super().__init__(*given)
        self.velocities = zeros(self.weights)

    def update(self):
        training = self.training
        if training.nesterov:
            for weight, gradient, velocity, decay in zip(self.weights, self.gradients, self.velocities, self.decays):
                mx.nd.nag_mom_update(weight, gradient, velocity, lr=training.lr, momentum=training.momentum, wd=decay, out=weight)
            return
        for part in self.parts:
            weights, decays = self.weights[part], self.decays[part]
            tensors = [x for three in zip(weights, self.gradients[part], self.velocities[part]) for x in three]
            mx.nd.multi_sgd_mom_update(*tensors, lrs=[training.lr] * len(weights), wds=decays, momentum=training.momentum,
                                       num_weights=len(weights), out=weights)


class AdamW(Optimizer):
    def __init__(self, *given):
        super().__init__(*given)
        self.firsts, self.seconds, self.count = zeros(self.weights), zeros(self.weights), 0

    def factor(self):
        """What gradients are multiplied with, [1]."""
        if not self.training.clip_norm:
            return mx.nd.ones(1)
        sums = mx.nd.multi_sum_sq(*self.gradients, num_arrays=len(self.gradients))
        return mx.nd.minimum(self.training.clip_norm / mx.nd.sqrt(mx.nd.sum(sums)), 1).reshape(1)

    def update(self):
        """The kernel adds `epsilon` to the root of the moment before it is corrected: it gets the one that comes to the same."""
        training, rate, epsilon = self.training, self.training.lr, self.training.eps
        self.count += 1
        if training.bias_correction:
            of_first, of_second = (1 - beta**self.count for beta in training.betas)
            rate, epsilon = rate * of_second**0.5 / of_first, epsilon * of_second**0.5
        factor = self.factor()
        for part in self.parts:
            weights = self.weights[part]
            count = len(weights)
            mx.nd.contrib.multi_adamw_update(
                weights, self.gradients[part], self.firsts[part], self.seconds[part], factor, lrs=[rate] * count,
                wds=[training.lr * decay for decay in self.decays[part]], etas=[1.0] * count, beta1=training.betas[0],
                beta2=training.betas[1], epsilon=epsilon, size=count, out=weights)
