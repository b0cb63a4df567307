"""SGD with momentum, and AdamW, on tensors by name, in float32."""

import jax.numpy as jnp
from peer.work import Cannot


def of(work):
    kinds = {"sgd": Sgd, "adamw": AdamW}
    if work.training.optimizer not in kinds:
        raise Cannot(f"optimizer {work.training.optimizer} is none of {', '.join(kinds)}")
    return kinds[work.training.optimizer](work)


def clipped(gradients, limit):
    """By the norm of all of them."""
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in gradients.values()))
    factor = jnp.minimum(1, limit / norm)
    return {name: g * factor for name, g in gradients.items()}


class Sgd:
    def __init__(self, work):
        self.work, self.training = work, work.training

    def start(self, weights):
        return {name: jnp.zeros_like(weight) for name, weight in weights.items()}

    def update(self, weights, gradients, velocities, _count):
        momentum, moved, kept = self.training.momentum, {}, {}
        for name, weight in weights.items():
            direction = gradients[name] + self.work.decay(name) * weight
            kept[name] = momentum * velocities[name] + direction
            ahead = direction + momentum * kept[name] if self.training.nesterov else kept[name]
            moved[name] = weight - self.training.lr * ahead
        return moved, kept


class AdamW:
    def __init__(self, work):
        self.work, self.training = work, work.training

    def start(self, weights):
        return {name: (jnp.zeros_like(weight), jnp.zeros_like(weight)) for name, weight in weights.items()}

    def update(self, weights, gradients, moments, count):
        """The next weights and moments; `count` from 1."""
        beta1, beta2 = self.training.betas
        is_corrected = self.training.bias_correction
        of_first, of_second = (1 - beta1**count, 1 - beta2**count) if is_corrected else (1, 1)
        moved, kept = {}, {}
        for name, weight in weights.items():
            first, second = moments[name]
            first = beta1 * first + (1 - beta1) * gradients[name]
            second = beta2 * second + (1 - beta2) * jnp.square(gradients[name])
            direction = first / of_first / (jnp.sqrt(second / of_second) + self.training.eps)
            moved[name] = weight - self.training.lr * (direction + self.work.decay(name) * weight)
            kept[name] = first, second
        return moved, kept
