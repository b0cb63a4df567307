"""SGD with momentum, and AdamW, by TensorFlow's kernels for one tensor each."""

import tensorflow as tf
from peer.work import Cannot


def of(work, weights):
    kinds = {"sgd": Sgd, "adamw": AdamW}
    if work.training.optimizer not in kinds:
        raise Cannot(f"optimizer {work.training.optimizer} is none of {', '.join(kinds)}")
    return kinds[work.training.optimizer](work, weights)


def zeros(weights):
    return {name: tf.Variable(tf.zeros_like(weight)) for name, weight in weights.items()}


class Sgd:
    def __init__(self, work, weights):
        self.work, self.weights, self.velocities = work, weights, zeros(weights)

    def update(self, gradients):
        training = self.work.training
        for name, weight in self.weights.items():
            decay = self.work.decay(name)
            gradient = gradients[name] + decay * weight if decay else gradients[name]
            tf.raw_ops.ResourceApplyMomentum(
                var=weight.handle, accum=self.velocities[name].handle, lr=training.lr, grad=gradient,
                momentum=training.momentum, use_nesterov=training.nesterov)


class AdamW:
    def __init__(self, work, weights):
        self.work, self.weights = work, weights
        self.firsts, self.seconds = zeros(weights), zeros(weights)
        self.powers = [tf.Variable(1.0) for _ in range(2)]

    def update(self, gradients):
        """The kernel adds `epsilon` to the root of the moment before it is corrected: it gets the one that comes to the same."""
        training, powers, epsilon = self.work.training, [0.0, 0.0], self.work.training.eps
        if training.bias_correction:
            powers = [power.assign(power * beta) for power, beta in zip(self.powers, training.betas)]
            epsilon = training.eps * tf.sqrt(1 - powers[1])
        for name, weight in self.weights.items():
            decay = self.work.decay(name)
            if decay:
                weight.assign_sub(training.lr * decay * weight)
            tf.raw_ops.ResourceApplyAdam(
                var=weight.handle, m=self.firsts[name].handle, v=self.seconds[name].handle, beta1_power=powers[0],
                beta2_power=powers[1], lr=training.lr, beta1=training.betas[0], beta2=training.betas[1], epsilon=epsilon,
                grad=gradients[name])
