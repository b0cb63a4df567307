"""BERT in pre-training, and ELECTRA that answers questions, in PyTorch; parameters by Hugging Face's names but for queries, keys
and values.

Written for speed: one product makes queries, keys and values, PyTorch's own kernel computes the attention, and only the words to
predict reach the vocabulary.
"""

import torch
from torch import nn
from torch.nn import functional as F

from .work import MASKED_SCORE


class Residual(nn.Module):
    """`LayerNorm(residual + dropout(dense(x)))`"""

    def __init__(self, work, inputs):
        super().__init__()
        hidden = work.sizes.hidden_size
        self.dense, self.dropout = nn.Linear(inputs, hidden), nn.Dropout(work.dropout)
        self.LayerNorm = norm(work, hidden)

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

    def __init__(self, work):
        super().__init__()
        hidden = work.sizes.hidden_size
        self.projections = nn.Linear(hidden, 3 * hidden)
        self.heads, self.width, self.dropout = work.sizes.num_attention_heads, work.head_width(), work.dropout

    def forward(self, x, bias):
        projected = self.projections(x).view(*x.shape[:2], 3, self.heads, self.width)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
        return context.transpose(1, 2).reshape(x.shape)


class Attention(nn.Module):
    def __init__(self, work):
        super().__init__()
        self.self, self.output = SelfAttention(work), Residual(work, work.sizes.hidden_size)

    def forward(self, x, bias):
        return self.output(self.self(x, bias), x)


class Layer(nn.Module):
    def __init__(self, work):
        super().__init__()
        wide = work.sizes.intermediate_size
        self.attention, self.gelu = Attention(work), gelu(work)
        self.intermediate, self.output = Dense(work.sizes.hidden_size, wide), Residual(work, wide)

    def forward(self, x, bias):
        attended = self.attention(x, bias)
        return self.output(self.gelu(self.intermediate(attended)), attended)


class Embeddings(nn.Module):
    def __init__(self, work):
        super().__init__()
        sizes, width = work.sizes, work.embedding_size()
        self.word_embeddings = nn.Embedding(sizes.vocab_size, width)
        self.position_embeddings = nn.Embedding(sizes.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(sizes.type_vocab_size, width)
        self.LayerNorm, self.dropout = norm(work, width), nn.Dropout(work.dropout)

    def forward(self, words, types):
        positions = self.position_embeddings.weight[:words.shape[1]]
        return self.dropout(self.LayerNorm(self.word_embeddings(words) + self.token_type_embeddings(types) + positions))


class Encoder(nn.Module):
    """`input_ids`, `segment_ids`, `input_mask` [N, S] to states [N, S, H]."""

    def __init__(self, work):
        super().__init__()
        self.embeddings = Embeddings(work)
        if work.projects_embeddings():
            self.embeddings_project = nn.Linear(work.embedding_size(), work.sizes.hidden_size)
        layers = (Layer(work) for _ in range(work.sizes.num_hidden_layers))
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})

    def forward(self, words, types, mask):
        x = self.embeddings(words, types)
        if hasattr(self, "embeddings_project"):
            x = self.embeddings_project(x)
        bias = ((1 - mask.to(x.dtype)) * MASKED_SCORE)[:, None, None, :]
        for layer in self.encoder["layer"]:
            x = layer(x, bias)
        return x


class Transform(Dense):
    def __init__(self, work):
        hidden = work.sizes.hidden_size
        super().__init__(hidden, hidden)
        self.gelu, self.LayerNorm = gelu(work), norm(work, hidden)

    def forward(self, x):
        return self.LayerNorm(self.gelu(self.dense(x)))


class Predictions(nn.Module):
    def __init__(self, work):
        super().__init__()
        self.transform, self.bias = Transform(work), nn.Parameter(torch.zeros(work.sizes.vocab_size))

    def forward(self, x, words):
        return F.linear(self.transform(x), words, self.bias)


class Bert(nn.Module):
    """`input_ids`, `segment_ids`, `input_mask` [N, S], `masked_lm_positions` [N, P] to logits [N, P, V] and [N, 2]."""

    def __init__(self, work):
        super().__init__()
        hidden = work.sizes.hidden_size
        self.bert = Encoder(work)
        self.bert.pooler = Dense(hidden, hidden)
        self.cls = nn.ModuleDict({"predictions": Predictions(work), "seq_relationship": nn.Linear(hidden, 2)})

    def forward(self, words, types, mask, positions):
        x = self.bert(words, types, mask)
        masked = torch.gather(x, 1, positions[:, :, None].expand(-1, -1, x.shape[2]))
        following = self.cls["seq_relationship"](torch.tanh(self.bert.pooler(x[:, 0])))
        return self.cls["predictions"](masked, self.bert.embeddings.word_embeddings.weight), following


class Electra(nn.Module):
    """`input_ids`, `segment_ids`, `input_mask` [N, S] to scores of first and of last tokens, [N, S] each."""

    def __init__(self, work):
        super().__init__()
        self.electra, self.qa_outputs = Encoder(work), nn.Linear(work.sizes.hidden_size, 2)

    def forward(self, words, types, mask):
        return self.qa_outputs(self.electra(words, types, mask)).unbind(-1)


class FromInt32(nn.Module):
    """Takes the model's inputs as i32."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        return self.model(*(x.long() for x in inputs))


def gelu(work):
    return nn.GELU(approximate="tanh" if work.is_tanh_gelu() else "none")


def norm(work, width):
    return nn.LayerNorm(width, eps=work.sizes.layer_norm_eps)


def make(work):
    with torch.device("meta"):
        model = Bert(work) if work.family == "bert" else Electra(work)
    weights = {name: torch.from_numpy(array) for name, array in work.fused_weights(is_transposed=False).items()}
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_()


def loss(family, logits, feeds):
    """Of `feeds` by name, numbers i64: BERT's is that of masked words, their weighted mean, and that of following sentences; ELECTRA's
    the mean of those of first and last tokens.
    """
    first, second = (x.float() for x in logits)
    if family == "bert":
        weights = feeds["masked_lm_weights"].flatten()
        by_word = F.cross_entropy(first.flatten(0, 1), feeds["masked_lm_ids"].flatten(), reduction="none")
        return (by_word * weights).sum() / weights.sum() + F.cross_entropy(second, feeds["next_sentence_labels"])
    return (F.cross_entropy(first, feeds["start_positions"]) + F.cross_entropy(second, feeds["end_positions"])) / 2
