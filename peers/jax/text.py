"""BERT in pre-training, and ELECTRA that answers questions: weights of layers [inputs, outputs], one product for queries, keys
and values.
"""

import jax
import jax.numpy as jnp
from peer.work import MASKED_SCORE


def parameters(work):
    return {name: jnp.asarray(array) for name, array in work.fused_weights(is_transposed=True).items()}, {}


def feeds(work, _dtype):
    return work.named_feeds() if work.mode == "train" else work.inputs()


def linear(p, name, x):
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


class Dropout:
    """Keeps each element by 16 random bits of its own."""

    def __init__(self, rate, key=None):
        self.rate, self.key, self.calls = rate, key, 0

    def __call__(self, x):
        if self.rate == 0:
            return x
        self.calls += 1
        bits = jax.random.bits(jax.random.fold_in(self.key, self.calls), x.shape, jnp.uint16)
        return jnp.where(bits >= round(self.rate * 2**16), x / (1 - self.rate), 0).astype(x.dtype)


class Network:
    """The forward pass with parameters `p`."""

    def __init__(self, work, p, dropout):
        self.work, self.sizes, self.p, self.dropout = work, work.sizes, p, dropout

    def norm(self, name, x):
        wide = x.astype(jnp.float32)
        mean = wide.mean(-1, keepdims=True)
        variance = jnp.square(wide - mean).mean(-1, keepdims=True)
        normal = (wide - mean) * jax.lax.rsqrt(variance + self.sizes.layer_norm_eps)
        return (normal * self.p[f"{name}.LayerNorm.weight"] + self.p[f"{name}.LayerNorm.bias"]).astype(x.dtype)

    def gelu(self, x):
        return jax.nn.gelu(x, approximate=self.work.is_tanh_gelu())

    def attend(self, name, x, bias):
        batch, length, _ = x.shape
        width = self.work.head_width()
        projected = linear(self.p, f"{name}.projections", x).reshape(batch, length, 3, -1, width)
        query, key, value = projected.transpose(2, 0, 3, 1, 4)
        scores = (query @ key.swapaxes(2, 3)).astype(jnp.float32) * width**-0.5 + bias
        weights = self.dropout(jax.nn.softmax(scores).astype(x.dtype))
        return (weights @ value).transpose(0, 2, 1, 3).reshape(x.shape)

    def residual(self, name, x, previous):
        return self.norm(name, self.dropout(linear(self.p, f"{name}.dense", x)) + previous)

    def states(self, feeds):
        """[N, S, H]"""
        trunk = self.work.family
        tables = [self.p[f"{trunk}.embeddings.{table}_embeddings.weight"] for table in ("word", "token_type", "position")]
        words, types, positions = tables
        x = words[feeds["input_ids"]] + types[feeds["segment_ids"]] + positions[:feeds["input_ids"].shape[1]]
        x = self.dropout(self.norm(f"{trunk}.embeddings", x))
        if self.work.projects_embeddings():
            x = linear(self.p, f"{trunk}.embeddings_project", x)
        bias = (1 - feeds["input_mask"][:, None, None, :].astype(jnp.float32)) * MASKED_SCORE
        for index in range(self.sizes.num_hidden_layers):
            layer = f"{trunk}.encoder.layer.{index}"
            attended = self.residual(f"{layer}.attention.output", self.attend(f"{layer}.attention.self", x, bias), x)
            wide = self.gelu(linear(self.p, f"{layer}.intermediate.dense", attended))
            x = self.residual(f"{layer}.output", wide, attended)
        return x

    def outputs(self, feeds):
        x = self.states(feeds)
        if self.work.family == "electra":
            scores = linear(self.p, "qa_outputs", x)
            return scores[..., 0], scores[..., 1]
        masked = jnp.take_along_axis(x, feeds["masked_lm_positions"][:, :, None], 1)
        head = "cls.predictions.transform"
        masked = self.norm(head, self.gelu(linear(self.p, f"{head}.dense", masked)))
        words = masked @ self.p["bert.embeddings.word_embeddings.weight"].T + self.p["cls.predictions.bias"]
        return words, linear(self.p, "cls.seq_relationship", jnp.tanh(linear(self.p, "bert.pooler.dense", x[:, 0])))


def cross_entropy(logits, labels):
    """Of each row."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits.astype(jnp.float32)), labels[..., None], -1)[..., 0]


def loss(work, p, _statistics, feeds, key):
    """And no running statistics."""
    first, second = Network(work, p, Dropout(work.dropout, key)).outputs(feeds)
    if work.family == "electra":
        pairs = (first, feeds["start_positions"]), (second, feeds["end_positions"])
        return sum(cross_entropy(*pair).mean() for pair in pairs) / 2, {}
    weights = feeds["masked_lm_weights"]
    mlm = (cross_entropy(first, feeds["masked_lm_ids"]) * weights).sum() / weights.sum()
    return mlm + cross_entropy(second, feeds["next_sentence_labels"]).mean(), {}


def infer(work, p, _statistics, feeds):
    return Network(work, p, Dropout(0)).outputs(feeds)
