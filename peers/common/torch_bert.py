"""BERT in pre-training, the parameters by Hugging Face's names but for queries, keys and values.

Written for speed: one product makes queries, keys and values, PyTorch's own kernel computes the attention, and
only the words to predict reach the vocabulary.
"""

import bert_work
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

NOT_A_LABEL = -100


class Residual(nn.Module):
    """`LayerNorm(residual + dropout(dense(x)))`"""

    def __init__(self, inputs, hidden, dropout):
        super().__init__()
        self.dense, self.dropout = nn.Linear(inputs, hidden), nn.Dropout(dropout)
        self.LayerNorm = nn.LayerNorm(hidden, eps=bert_work.LAYER_NORM_EPS)

    def forward(self, x, residual):
        return self.LayerNorm(self.dropout(self.dense(x)) + residual)


class Dense(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.dense(x)


class SelfAttention(nn.Module):
    """Queries, keys and values are the rows of one layer, in this order."""

    def __init__(self, hidden, dropout):
        super().__init__()
        self.projections = nn.Linear(hidden, 3 * hidden)
        self.heads, self.dropout = hidden // bert_work.HEAD_WIDTH, dropout

    def forward(self, x, bias):
        projected = self.projections(x).view(*x.shape[:2], 3, self.heads, bert_work.HEAD_WIDTH)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
        return context.transpose(1, 2).reshape(x.shape)


class Attention(nn.Module):
    def __init__(self, hidden, dropout):
        super().__init__()
        self.self, self.output = SelfAttention(hidden, dropout), Residual(hidden, hidden, dropout)

    def forward(self, x, bias):
        return self.output(self.self(x, bias), x)


class Layer(nn.Module):
    def __init__(self, hidden, dropout):
        super().__init__()
        self.attention = Attention(hidden, dropout)
        self.intermediate, self.output = Dense(hidden, 4 * hidden), Residual(4 * hidden, hidden, dropout)

    def forward(self, x, bias):
        attended = self.attention(x, bias)
        return self.output(gelu(self.intermediate(attended)), attended)


def gelu(x):
    return F.gelu(x, approximate="tanh")


class Embeddings(nn.Module):
    def __init__(self, vocabulary, hidden, dropout):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, hidden)
        self.position_embeddings = nn.Embedding(bert_work.POSITIONS, hidden)
        self.token_type_embeddings = nn.Embedding(bert_work.TYPES, hidden)
        self.LayerNorm, self.dropout = nn.LayerNorm(hidden, eps=bert_work.LAYER_NORM_EPS), nn.Dropout(dropout)

    def forward(self, words, types):
        positions = self.position_embeddings.weight[:words.shape[1]]
        return self.dropout(self.LayerNorm(self.word_embeddings(words) + self.token_type_embeddings(types) + positions))


class Encoder(nn.Module):
    def __init__(self, args, dropout):
        super().__init__()
        self.embeddings = Embeddings(args.vocabulary, args.hidden, dropout)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer(args.hidden, dropout) for _ in range(args.layers))})
        self.pooler = Dense(args.hidden, args.hidden)

    def forward(self, words, types, mask):
        x = self.embeddings(words, types)
        bias = ((1 - mask.to(x.dtype)) * bert_work.MASKED_SCORE)[:, None, None, :]
        for layer in self.encoder["layer"]:
            x = layer(x, bias)
        return x


class Transform(Dense):
    def __init__(self, hidden):
        super().__init__(hidden, hidden)
        self.LayerNorm = nn.LayerNorm(hidden, eps=bert_work.LAYER_NORM_EPS)

    def forward(self, x):
        return self.LayerNorm(gelu(self.dense(x)))


class Predictions(nn.Module):
    def __init__(self, vocabulary, hidden):
        super().__init__()
        self.transform, self.bias = Transform(hidden), nn.Parameter(torch.zeros(vocabulary))

    def forward(self, x, words):
        return F.linear(self.transform(x), words, self.bias)


class Bert(nn.Module):
    """`input_ids`, `segment_ids`, `input_mask` [B, S], `masked_lm_positions` [B, P] to logits [B, P, V] and [B, 2]."""

    def __init__(self, args, dropout=0.0):
        super().__init__()
        self.bert = Encoder(args, dropout)
        self.cls = nn.ModuleDict({"predictions": Predictions(args.vocabulary, args.hidden),
                                  "seq_relationship": nn.Linear(args.hidden, 2)})

    def forward(self, words, types, mask, positions):
        x = self.bert(words, types, mask)
        masked = torch.gather(x, 1, positions[:, :, None].expand(-1, -1, x.shape[2]))
        following = self.cls["seq_relationship"](torch.tanh(self.bert.pooler(x[:, 0])))
        return self.cls["predictions"](masked, self.bert.embeddings.word_embeddings.weight), following


class FromInt32(nn.Module):
    """Takes the model's inputs as i32."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        return self.model(*(x.long() for x in inputs))


def make(args, dropout=0.0):
    with torch.device("meta"):
        model = Bert(args, dropout)
    tensors = {name: torch.from_numpy(array) for name, array in bert_work.weights(args).items()}
    for layer in range(args.layers):
        attention = f"bert.encoder.layer.{layer}.attention.self"
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"{attention}.{part}.{kind}") for part in ("query", "key", "value")]
            tensors[f"{attention}.projections.{kind}"] = torch.cat(parts)
    model.load_state_dict(tensors, assign=True)
    return model


def inputs(feeds):
    """What the model takes."""
    return tuple(torch.from_numpy(feeds[name]).long() for name in bert_work.INPUTS)


def targets(feeds):
    """What `loss` takes: i64 [B * P], and [B]."""
    words = np.where(feeds["masked_lm_weights"] > 0, feeds["masked_lm_ids"], NOT_A_LABEL)
    return torch.from_numpy(words).long().flatten(), torch.from_numpy(feeds["next_sentence_labels"]).long()


def loss(logits, targets):
    """Mean over the words, but for those of weight 0, plus the mean over the sequences."""
    (words, following), (word_ids, sentence_labels) = logits, targets
    mlm = F.cross_entropy(words.flatten(0, 1).float(), word_ids, ignore_index=NOT_A_LABEL)
    return mlm + F.cross_entropy(following.float(), sentence_labels)
