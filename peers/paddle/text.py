"""BERT in pre-training, and ELECTRA that answers questions: weights of layers [inputs, outputs], one product for queries, keys
and values.
"""

import numpy as np
import paddle
from module import Module
from paddle.nn import functional as F
from peer.work import INPUTS, MASKED_SCORE

TARGETS = {"bert": ["masked_lm_ids", "masked_lm_weights", "next_sentence_labels"], "electra": ["start_positions", "end_positions"]}


class Text(Module):
    def __init__(self, work):
        super().__init__(work, work.fused_weights(is_transposed=True), {})
        self.loss = {"bert": self.loss_of_bert, "electra": self.loss_of_electra}[work.family]

    def arrays(self, names):
        feeds = self.work.named_feeds(names)
        return [[x if x.dtype == np.float32 else x.astype(np.int64) for x in (batch[name] for name in names)]
                for batch in feeds]

    def inputs(self):
        return self.arrays(INPUTS[self.work.family])

    def feeds(self):
        return self.arrays(INPUTS[self.work.family] + TARGETS[self.work.family])

    def dropout(self, x):
        return F.dropout(x, self.work.dropout, self.training) if self.work.dropout else x

    def linear(self, name, x):
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name, x):
        scale, offset = (self.weights[f"{name}.LayerNorm.{kind}"] for kind in ("weight", "bias"))
        return F.layer_norm(x, x.shape[-1], scale, offset, self.work.sizes.layer_norm_eps)

    def gelu(self, x):
        return F.gelu(x, approximate=self.work.is_tanh_gelu())

    def attend(self, name, x, bias):
        batch, length, hidden = x.shape
        width = self.work.head_width()
        projected = self.linear(f"{name}.projections", x).reshape([batch, length, 3, hidden // width, width])
        query, key, value = projected.transpose([2, 0, 3, 1, 4]).unbind(0)
        scores = paddle.matmul(query * width**-0.5, key, transpose_y=True) + bias
        context = paddle.matmul(self.dropout(F.softmax(scores)), value)
        return context.transpose([0, 2, 1, 3]).reshape([batch, length, hidden])

    def residual(self, name, x, previous):
        return self.norm(name, self.dropout(self.linear(f"{name}.dense", x)) + previous)

    def states(self, words, types, mask):
        """[N, S, H]"""
        trunk = self.work.family
        tables = [self.weights[f"{trunk}.embeddings.{table}_embeddings.weight"] for table in ("word", "token_type", "position")]
        x = F.embedding(words, tables[0]) + F.embedding(types, tables[1]) + tables[2][:words.shape[1]]
        x = self.dropout(self.norm(f"{trunk}.embeddings", x))
        if self.work.projects_embeddings():
            x = self.linear(f"{trunk}.embeddings_project", x)
        bias = ((1 - mask.astype(x.dtype)) * MASKED_SCORE).unsqueeze([1, 2])
        for index in range(self.work.sizes.num_hidden_layers):
            layer = f"{trunk}.encoder.layer.{index}"
            attended = self.residual(f"{layer}.attention.output", self.attend(f"{layer}.attention.self", x, bias), x)
            wide = self.gelu(self.linear(f"{layer}.intermediate.dense", attended))
            x = self.residual(f"{layer}.output", wide, attended)
        return x

    def forward(self, words, types, mask, places=None):
        x = self.states(words, types, mask)
        if self.work.family == "electra":
            return self.linear("qa_outputs", x).unbind(-1)
        batch, predictions = places.shape
        rows = places + (paddle.arange(batch) * x.shape[1]).unsqueeze(1)
        masked = paddle.gather(x.reshape([-1, x.shape[2]]), rows.flatten()).reshape([batch, predictions, x.shape[2]])
        head = "cls.predictions.transform"
        masked = self.norm(head, self.gelu(self.linear(f"{head}.dense", masked)))
        table = self.weights["bert.embeddings.word_embeddings.weight"]
        words = paddle.matmul(masked, table, transpose_y=True) + self.weights["cls.predictions.bias"]
        return words, self.linear("cls.seq_relationship", paddle.tanh(self.linear("bert.pooler.dense", x[:, 0])))

    def loss_of_bert(self, words, types, mask, places, ids, weights, following):
        first, second = self(words, types, mask, places)
        by_word = F.cross_entropy(first, ids.unsqueeze(2), reduction="none").squeeze(2)
        return (by_word * weights).sum() / weights.sum() + F.cross_entropy(second, following)

    def loss_of_electra(self, words, types, mask, starts, ends):
        first, second = self(words, types, mask)
        return (F.cross_entropy(first, starts) + F.cross_entropy(second, ends)) / 2
