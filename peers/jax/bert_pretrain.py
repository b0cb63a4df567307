"""Times BERT in pre-training in JAX on one batch held in memory and prints one JSON line.

    python bert_pretrain.py train [--batch-size N] [--precision fp32|bf16] [--weights FILE] ...

One compiled step: forward, both losses, backward, clipping by the global norm, AdamW; it gives back the memory of the
weights and moments that it replaces. In bf16 the weights are cast in the step; scores, losses and AdamW are in float32.
"""

import os
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
import bert_work
import measuring

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}


def parse_arguments():
    parser = measuring.parser(__doc__, modes=["train"], precisions=list(DTYPES))
    bert_work.add_arguments(parser)
    bert_work.add_training_arguments(parser)
    return parser.parse_args()


def use_threads(count):
    """XLA has a thread for each processor that the process may run on when it first computes."""
    allowed = sorted(os.sched_getaffinity(0))
    if count > len(allowed):
        raise SystemExit(f"--threads {count}: only {len(allowed)} processors may be used")
    os.sched_setaffinity(0, allowed[:count])


def make_parameters(args):
    """Weights by Hugging Face's names; those of layers as [inputs, outputs], queries, keys and values side by side."""
    arrays = bert_work.weights(args)
    for layer in range(args.layers):
        attention = f"bert.encoder.layer.{layer}.attention.self"
        for kind in ("weight", "bias"):
            parts = [arrays.pop(f"{attention}.{part}.{kind}") for part in ("query", "key", "value")]
            arrays[f"{attention}.projections.{kind}"] = np.concatenate(parts)
    tables = ("embeddings.weight", "LayerNorm.weight")
    return {name: jnp.asarray(a if a.ndim == 1 or name.endswith(tables) else np.ascontiguousarray(a.T))
            for name, a in arrays.items()}


def linear(p, name, x):
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def norm(p, name, x):
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    normal = (x - mean) * jax.lax.rsqrt(variance + bert_work.LAYER_NORM_EPS)
    return normal * p[f"{name}.LayerNorm.weight"] + p[f"{name}.LayerNorm.bias"]


class Dropout:
    """Keeps each element by 16 random bits of its own."""

    def __init__(self, rate, key):
        self.rate, self.key, self.calls = rate, key, 0

    def __call__(self, x):
        if self.rate == 0:
            return x
        self.calls += 1
        bits = jax.random.bits(jax.random.fold_in(self.key, self.calls), x.shape, jnp.uint16)
        return jnp.where(bits >= round(self.rate * 2**16), x / (1 - self.rate), 0).astype(x.dtype)


def attend(p, name, x, bias, dropout):
    batch, length, hidden = x.shape
    projected = linear(p, f"{name}.projections", x).reshape(batch, length, 3, -1, bert_work.HEAD_WIDTH)
    query, key, value = projected.transpose(2, 0, 3, 1, 4)
    scores = (query @ key.swapaxes(2, 3)).astype(jnp.float32) * bert_work.HEAD_WIDTH**-0.5 + bias
    weights = dropout(jax.nn.softmax(scores).astype(x.dtype))
    return (weights @ value).transpose(0, 2, 1, 3).reshape(x.shape)


def encode(p, feeds, layers, dropout):
    """[B, S, H]"""
    def residual(name, x, previous):
        return norm(p, name, dropout(linear(p, f"{name}.dense", x)) + previous)

    tables = [p[f"bert.embeddings.{table}_embeddings.weight"] for table in ("word", "token_type", "position")]
    words, types, positions = tables
    x = words[feeds["input_ids"]] + types[feeds["segment_ids"]] + positions[:feeds["input_ids"].shape[1]]
    x = dropout(norm(p, "bert.embeddings", x))
    bias = (1 - feeds["input_mask"][:, None, None, :].astype(jnp.float32)) * bert_work.MASKED_SCORE
    for index in range(layers):
        layer = f"bert.encoder.layer.{index}"
        attended = residual(f"{layer}.attention.output", attend(p, f"{layer}.attention.self", x, bias, dropout), x)
        wide = jax.nn.gelu(linear(p, f"{layer}.intermediate.dense", attended), approximate=True)
        x = residual(f"{layer}.output", wide, attended)
    return x


def cross_entropy(logits, labels):
    """Of each row."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits.astype(jnp.float32)), labels[..., None], -1)[..., 0]


def loss(parameters, feeds, key, args):
    p = {name: array.astype(DTYPES[args.precision]) for name, array in parameters.items()}
    x = encode(p, feeds, args.layers, Dropout(args.dropout, key))
    masked = jnp.take_along_axis(x, feeds["masked_lm_positions"][:, :, None], 1)
    head = "cls.predictions.transform"
    masked = norm(p, head, jax.nn.gelu(linear(p, f"{head}.dense", masked), approximate=True))
    logits = masked @ p["bert.embeddings.word_embeddings.weight"].T + p["cls.predictions.bias"]
    following = linear(p, "cls.seq_relationship", jnp.tanh(linear(p, "bert.pooler.dense", x[:, 0])))
    weights = feeds["masked_lm_weights"]
    mlm = (cross_entropy(logits, feeds["masked_lm_ids"]) * weights).sum() / weights.sum()
    return mlm + cross_entropy(following, feeds["next_sentence_labels"]).mean()


def clipped(gradients):
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in gradients.values()))
    factor = jnp.minimum(1, bert_work.CLIP_NORM / norm)
    return {name: g * factor for name, g in gradients.items()}


def adamw(name, weight, gradient, first, second, count, lr):
    """The next weight and moments; `count` from 1."""
    beta1, beta2 = bert_work.ADAMW["betas"]
    first = beta1 * first + (1 - beta1) * gradient
    second = beta2 * second + (1 - beta2) * jnp.square(gradient)
    update = first / (1 - beta1**count) / (jnp.sqrt(second / (1 - beta2**count)) + bert_work.ADAMW["eps"])
    decay = bert_work.WEIGHT_DECAY if bert_work.is_decayed(name) else 0.0
    return weight - lr * (update + decay * weight), first, second


def make_step(args):
    @partial(jax.jit, donate_argnums=0)
    def update(state, feeds, key):
        """State: the number of steps done; weight and both moments by name."""
        done, tensors = state
        weights = {name: tensor[0] for name, tensor in tensors.items()}
        value, gradients = jax.value_and_grad(loss)(weights, feeds, jax.random.fold_in(key, done), args)
        if not args.no_clip:
            gradients = clipped(gradients)
        tensors = {name: adamw(name, tensor[0], gradients[name], *tensor[1:], done + 1, args.lr)
                   for name, tensor in tensors.items()}
        return (done + 1, tensors), value

    key = jax.random.key(args.seed, impl="rbg")
    state = (jnp.int32(0), {name: (weight, jnp.zeros_like(weight), jnp.zeros_like(weight))
                            for name, weight in make_parameters(args).items()})

    def step(feeds):
        nonlocal state
        state, value = update(state, feeds, key)
        return value.item()

    return step


def main():
    import_memory = measuring.resident_bytes()
    args = parse_arguments()
    use_threads(args.threads)
    feeds = {name: jnp.asarray(array) for name, array in bert_work.feeds(args).items()}
    timing = measuring.run(make_step(args), [(feeds,)], args)
    options = bert_work.options(args, random=str(jax.random.key_impl(jax.random.key(0, impl="rbg"))))
    measuring.print_event(args, bert_work.model_name(args), timing, "jax", jax.__version__, options, import_memory)


if __name__ == "__main__":
    main()
