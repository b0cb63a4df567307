"""BERT in pre-training, and ELECTRA that answers questions: one product for queries, keys and values."""

import math

from mxnet import sym
from peer.work import MASKED_SCORE


def parameters(work):
    return work.fused_weights(is_transposed=False), {}


def inputs(work):
    return work.inputs()


def feeds(work):
    return work.named_feeds()


class Network:
    """The graph of the outputs; `batch`, `length`, `hidden` are N, S and H."""

    def __init__(self, work, dropout):
        self.work, self.sizes, self.rate = work, work.sizes, dropout
        self.batch, self.length, self.hidden = work.batch_size, work.sizes.sequence_length, work.sizes.hidden_size
        self.variables = {}

    def var(self, name):
        """The same one for the same name: words are embedded and predicted by one table."""
        return self.variables.setdefault(name, sym.var(name))

    def dropout(self, x):
        return sym.Dropout(x, p=self.rate) if self.rate else x

    def linear(self, name, x, outputs):
        return sym.FullyConnected(x, self.var(f"{name}.weight"), self.var(f"{name}.bias"), num_hidden=outputs, flatten=False)

    def norm(self, name, x):
        scale, offset = (self.var(f"{name}.LayerNorm.{kind}") for kind in ("weight", "bias"))
        return sym.LayerNorm(x, scale, offset, axis=-1, eps=self.sizes.layer_norm_eps)

    def gelu(self, x):
        if not self.work.is_tanh_gelu():
            return sym.LeakyReLU(x, act_type="gelu")
        return 0.5 * x * (1 + sym.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))

    def attend(self, name, x, bias):
        heads, width = self.sizes.num_attention_heads, self.work.head_width()
        projected = self.linear(f"{name}.projections", x, 3 * self.hidden)
        projected = sym.reshape(projected, (self.batch, self.length, 3, heads, width))
        projected = sym.reshape(sym.transpose(projected, (2, 0, 3, 1, 4)), (3, -1, self.length, width))
        query, key, value = sym.split(projected, num_outputs=3, axis=0, squeeze_axis=True)
        scores = sym.batch_dot(query * width**-0.5, key, transpose_b=True)
        scores = sym.broadcast_add(sym.reshape(scores, (self.batch, heads, self.length, self.length)), bias)
        weights = sym.reshape(self.dropout(sym.softmax(scores)), (-1, self.length, self.length))
        context = sym.reshape(sym.batch_dot(weights, value), (self.batch, heads, self.length, width))
        return sym.reshape(sym.transpose(context, (0, 2, 1, 3)), (self.batch, self.length, self.hidden))

    def residual(self, name, x, previous):
        return self.norm(name, self.dropout(self.linear(f"{name}.dense", x, self.hidden)) + previous)

    def embed(self, table, ids, rows):
        weight = self.var(f"{self.work.family}.embeddings.{table}_embeddings.weight")
        return sym.Embedding(ids, weight, input_dim=rows, output_dim=self.work.embedding_size())

    def states(self):
        """[N, S, H]"""
        trunk, sizes = self.work.family, self.sizes
        x = self.embed("word", self.var("input_ids"), sizes.vocab_size)
        x = x + self.embed("token_type", self.var("segment_ids"), sizes.type_vocab_size)
        positions = self.var(f"{trunk}.embeddings.position_embeddings.weight")
        x = sym.broadcast_add(x, sym.expand_dims(sym.slice_axis(positions, axis=0, begin=0, end=self.length), 0))
        x = self.dropout(self.norm(f"{trunk}.embeddings", x))
        if self.work.projects_embeddings():
            x = self.linear(f"{trunk}.embeddings_project", x, self.hidden)
        bias = sym.reshape((1 - self.var("input_mask")) * MASKED_SCORE, (self.batch, 1, 1, self.length))
        for index in range(sizes.num_hidden_layers):
            layer = f"{trunk}.encoder.layer.{index}"
            attended = self.residual(f"{layer}.attention.output", self.attend(f"{layer}.attention.self", x, bias), x)
            wide = self.gelu(self.linear(f"{layer}.intermediate.dense", attended, sizes.intermediate_size))
            x = self.residual(f"{layer}.output", wide, attended)
        return x

    def outputs(self):
        x = self.states()
        if self.work.family == "electra":
            scores = self.linear("qa_outputs", x, 2)
            return sym.split(scores, num_outputs=2, axis=2, squeeze_axis=True)
        rows = sym.broadcast_add(self.var("masked_lm_positions"),
                                 sym.reshape(sym.arange(0, self.batch * self.length, self.length), (self.batch, 1)))
        masked = sym.take(sym.reshape(x, (-1, self.hidden)), rows)
        head = "cls.predictions.transform"
        masked = self.norm(head, self.gelu(self.linear(f"{head}.dense", masked, self.hidden)))
        table, bias = self.var("bert.embeddings.word_embeddings.weight"), self.var("cls.predictions.bias")
        words = sym.FullyConnected(masked, table, bias, num_hidden=self.sizes.vocab_size, flatten=False)
        first = sym.reshape(sym.slice_axis(x, axis=1, begin=0, end=1), (self.batch, self.hidden))
        pooled = sym.tanh(self.linear("bert.pooler.dense", first, self.hidden))
        return words, self.linear("cls.seq_relationship", pooled, 2)


def cross_entropy(logits, labels):
    """Of each row."""
    return -sym.pick(sym.log_softmax(logits), labels)


def loss(work):
    first, second = Network(work, work.dropout).outputs()
    if work.family == "electra":
        pairs = (first, sym.var("start_positions")), (second, sym.var("end_positions"))
        return sum(sym.mean(cross_entropy(*pair)) for pair in pairs) / 2
    weights = sym.var("masked_lm_weights")
    mlm = sym.sum(cross_entropy(first, sym.var("masked_lm_ids")) * weights) / sym.sum(weights)
    return mlm + sym.mean(cross_entropy(second, sym.var("next_sentence_labels")))


def outputs(work):
    return Network(work, 0.0).outputs()
