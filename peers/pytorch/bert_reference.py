"""What the BERT fixture and parity scripts share: batches, losses, gradients and AdamW steps as Hugging Face's model has them."""

import torch
from transformers import BertConfig, BertForPreTraining

WEIGHT_DECAY = 0.01
EPS = 1e-6
NOT_A_LABEL = -100


def make_model(**sizes):
    """A model without dropout, whose attention is plain arithmetic."""
    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes)
    config._attn_implementation = "eager"
    return BertForPreTraining(config)


def make_batch(config, batch, length, predictions, generator):
    """Feeds by name. Sequences end in padding, and some predictions are padding too, of weight 0."""
    def integers(limit, *shape):
        return torch.randint(0, limit, shape, generator=generator)

    lengths = torch.tensor([length - item * (length // 5) for item in range(batch)])
    mask = (torch.arange(length)[None, :] < lengths[:, None]).long()
    positions = torch.stack([torch.randperm(int(n) - 1, generator=generator)[:predictions].sort().values + 1 for n in lengths])
    weights = torch.ones(batch, predictions)
    weights[-1, predictions // 2:] = 0
    segments = (torch.arange(length)[None, :] >= (lengths // 2)[:, None]).long() * mask
    return {
        "input_ids": integers(config.vocab_size, batch, length), "segment_ids": segments, "input_mask": mask,
        "masked_lm_positions": positions * (weights > 0).long(), "masked_lm_ids": integers(config.vocab_size, batch, predictions),
        "masked_lm_weights": weights, "next_sentence_labels": torch.arange(batch) % 2,
    }


def losses(model, feeds):
    """(sum of both losses, loss of masked words, loss of following sentences)."""
    real = feeds["masked_lm_weights"] > 0
    rows = torch.arange(len(real))[:, None].expand_as(real)
    labels = torch.full_like(feeds["input_ids"], NOT_A_LABEL)
    labels[rows[real], feeds["masked_lm_positions"][real]] = feeds["masked_lm_ids"][real]
    output = model(input_ids=feeds["input_ids"], attention_mask=feeds["input_mask"], token_type_ids=feeds["segment_ids"],
                   labels=labels, next_sentence_label=feeds["next_sentence_labels"])
    following = torch.nn.functional.cross_entropy(output.seq_relationship_logits, feeds["next_sentence_labels"])
    return output.loss, output.loss - following, following


def losses_and_gradients(model, feeds):
    """Losses by the names of the step's outputs, and gradients by parameter name."""
    model.train()
    model.zero_grad(set_to_none=True)
    parts = losses(model, feeds)
    parts[0].backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return dict(zip(("loss", "mlm_loss", "nsp_loss"), (part.item() for part in parts))), gradients


def no_decay(name):
    return name.endswith("bias") or "LayerNorm" in name


def adamw_losses(model, loss_of, lr, steps):
    """Losses of `steps` updates, each before its update; `loss_of` computes that of a step, counted from 0."""
    groups = [
        {"params": [p for n, p in model.named_parameters() if not no_decay(n)], "weight_decay": WEIGHT_DECAY},
        {"params": [p for n, p in model.named_parameters() if no_decay(n)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999), eps=EPS)
    values = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def stored_feeds(feeds):
    """Feeds as the step takes them: `i32`, and weights `f32`."""
    return {name: x.float() if x.is_floating_point() else x.int() for name, x in feeds.items()}
