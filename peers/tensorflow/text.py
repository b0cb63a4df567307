"""BERT in pre-training, and ELECTRA that answers questions: weights of layers [inputs, outputs], one product for queries, keys
and values.
"""

import tensorflow as tf
from peer.work import MASKED_SCORE


def parameters(work):
    return work.fused_weights(is_transposed=True), {}


def feeds(work, _dtype):
    return work.named_feeds() if work.mode == "train" else work.inputs()


class Network:
    """The forward pass with parameters `p`."""

    def __init__(self, work, p, dropout):
        self.work, self.sizes, self.p, self.rate = work, work.sizes, p, dropout

    def dropout(self, x):
        return tf.nn.dropout(x, self.rate) if self.rate else x

    def linear(self, name, x):
        return linear(x, self.p[f"{name}.weight"], self.p[f"{name}.bias"])

    def norm(self, name, x):
        wide = tf.cast(x, tf.float32)
        mean, variance = tf.nn.moments(wide, -1, keepdims=True)
        scale, offset = (tf.cast(self.p[f"{name}.LayerNorm.{part}"], tf.float32) for part in ("weight", "bias"))
        return tf.cast((wide - mean) * tf.math.rsqrt(variance + self.sizes.layer_norm_eps) * scale + offset, x.dtype)

    def gelu(self, x):
        return tf.nn.gelu(x, approximate=self.work.is_tanh_gelu())

    def attend(self, name, x, bias):
        batch, length, _ = x.shape
        width = self.work.head_width()
        projected = tf.reshape(self.linear(f"{name}.projections", x), [batch, length, 3, -1, width])
        query, key, value = tf.unstack(tf.transpose(projected, [2, 0, 3, 1, 4]))
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32) * width**-0.5 + bias
        weights = self.dropout(tf.cast(tf.nn.softmax(scores), x.dtype))
        return tf.reshape(tf.transpose(weights @ value, [0, 2, 1, 3]), x.shape)

    def residual(self, name, x, previous):
        return self.norm(name, self.dropout(self.linear(f"{name}.dense", x)) + previous)

    def states(self, feeds):
        """[N, S, H]"""
        trunk = self.work.family
        tables = [self.p[f"{trunk}.embeddings.{table}_embeddings.weight"] for table in ("word", "token_type", "position")]
        words, types, positions = tables
        x = tf.gather(words, feeds["input_ids"]) + tf.gather(types, feeds["segment_ids"])
        x = self.dropout(self.norm(f"{trunk}.embeddings", x + positions[:x.shape[1]]))
        if self.work.projects_embeddings():
            x = self.linear(f"{trunk}.embeddings_project", x)
        bias = (1 - tf.cast(feeds["input_mask"][:, None, None, :], tf.float32)) * MASKED_SCORE
        for index in range(self.sizes.num_hidden_layers):
            layer = f"{trunk}.encoder.layer.{index}"
            attended = self.residual(f"{layer}.attention.output", self.attend(f"{layer}.attention.self", x, bias), x)
            wide = self.gelu(self.linear(f"{layer}.intermediate.dense", attended))
            x = self.residual(f"{layer}.output", wide, attended)
        return x

    def outputs(self, feeds):
        x = self.states(feeds)
        if self.work.family == "electra":
            scores = self.linear("qa_outputs", x)
            return scores[..., 0], scores[..., 1]
        masked = tf.gather(x, feeds["masked_lm_positions"], batch_dims=1)
        head = "cls.predictions.transform"
        masked = self.norm(head, self.gelu(self.linear(f"{head}.dense", masked)))
        table = self.p["bert.embeddings.word_embeddings.weight"]
        words = linear(masked, table, self.p["cls.predictions.bias"], transpose_b=True)
        return words, self.linear("cls.seq_relationship", tf.tanh(self.linear("bert.pooler.dense", x[:, 0])))


def linear(x, weight, bias, **options):
    """Of the last axis, as one product of matrices."""
    rows = tf.reshape(x, [-1, x.shape[-1]])
    y = tf.nn.bias_add(tf.matmul(rows, weight, **options), bias)
    return tf.reshape(y, [*x.shape[:-1], y.shape[-1]])


def cross_entropy(logits, labels):
    """Of each row."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32))


def loss(work, p, _statistics, feeds):
    first, second = Network(work, p, work.dropout).outputs(feeds)
    if work.family == "electra":
        pairs = (first, feeds["start_positions"]), (second, feeds["end_positions"])
        return sum(tf.reduce_mean(cross_entropy(*pair)) for pair in pairs) / 2
    weights = feeds["masked_lm_weights"]
    mlm = tf.reduce_sum(cross_entropy(first, feeds["masked_lm_ids"]) * weights) / tf.reduce_sum(weights)
    return mlm + tf.reduce_mean(cross_entropy(second, feeds["next_sentence_labels"]))


def infer(work, p, _statistics, feeds):
    return Network(work, p, 0.0).outputs(feeds)
