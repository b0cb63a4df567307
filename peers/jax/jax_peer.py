"""Steps of training and inference in JAX: one compiled program each.

A training step gives back the memory of the weights and moments that it replaces. In bf16 the weights are cast in the step of
training, and once for inference; sums of batch norms, scores, losses and optimizers are in float32.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optimizers
import resnet
import text
from peer import protocol
from peer.work import OUTPUTS

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}
RANDOM = "rbg"


class Jax(protocol.Peer):
    framework = "jax"
    version = jax.__version__
    variants = [{"name": "jit", "fused": True, "default": True,
                 "settings": "one compiled step, memory donated, 16 random bits for each element of dropout"}]
    offers = protocol.offer(["train", "infer"], **protocol.bf16_in_software())

    def step(self, request, work):
        model = resnet if work.family == "resnet" else text
        options = {"random": RANDOM} if work.dropout else {}
        make = make_train_step if request.trains else make_infer_step
        return make(model, work, DTYPES[request.precision], request.seed), options


def make_train_step(model, work, dtype, seed):
    optimizer = optimizers.of(work)

    @partial(jax.jit, donate_argnums=0)
    def update(state, feeds, key):
        """State: the number of steps done; weights, running statistics, and the optimizer's tensors by name."""
        done, weights, statistics, moments = state

        def loss(weights):
            p = {name: array.astype(dtype) for name, array in weights.items()}
            return model.loss(work, p, statistics, feeds, jax.random.fold_in(key, done))

        (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        if work.training.clip_norm:
            gradients = optimizers.clipped(gradients, work.training.clip_norm)
        weights, moments = optimizer.update(weights, gradients, moments, done + 1)
        return (done + 1, weights, statistics, moments), value

    key = jax.random.key(seed, impl=RANDOM)
    weights, statistics = model.parameters(work)
    state = (jnp.int32(0), weights, statistics, optimizer.start(weights))
    batches = [jax.tree.map(jnp.asarray, feeds) for feeds in model.feeds(work, dtype)]

    def step(batch):
        nonlocal state
        state, value = update(state, batches[batch], key)
        return value.item()

    return step


def make_infer_step(model, work, dtype, seed):
    weights, statistics = model.parameters(work)
    weights = {name: array.astype(dtype) for name, array in weights.items()}
    batches = [jax.tree.map(jnp.asarray, feeds) for feeds in model.feeds(work, dtype)]

    @jax.jit
    def forward(weights, statistics, feeds):
        outputs = model.infer(work, weights, statistics, feeds)
        return {name: x.astype(jnp.float32) for name, x in zip(OUTPUTS[work.family], outputs)}

    def step(batch):
        return {name: np.asarray(x) for name, x in forward(weights, statistics, batches[batch]).items()}

    return step
