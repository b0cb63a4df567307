"""What the ELECTRA fixture and parity scripts share: networks of Hugging Face's parts, batches, samples and losses.

`Joint` is pre-training as NVIDIA's `modeling.py` has it, with one embedding layer for both networks. Samples come from the random
numbers that the compiled step has: Philox4x32-10 by seed, step and stream.
"""

import numpy as np
import torch
from torch.nn import functional as F
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining, ElectraModel
from transformers.models.xlnet.modeling_xlnet import XLNetPoolerAnswerClass, XLNetPoolerEndLogits, XLNetPoolerStartLogits

EPSILON = 1e-6
LEAST = 1e-9
DISCRIMINATOR_WEIGHT = 50.0
SEED = 0


def make_config(**sizes):
    """Without dropout; attention is plain arithmetic."""
    config = ElectraConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=None, **sizes)
    config._attn_implementation = "eager"
    return config


def generator_sizes(sizes, fraction):
    hidden = -(-round(sizes["hidden_size"] * fraction) // 64) * 64
    return sizes | {"hidden_size": hidden, "num_attention_heads": hidden // 64, "intermediate_size": 4 * hidden}


def words(seed, step, stream, blocks):
    """Blocks of Philox4x32-10 with the counters (block, 0, step, stream): `[blocks, 4]`."""
    low = np.uint64(0xFFFFFFFF)
    counter = [np.arange(blocks, dtype=np.uint64)] + [np.full(blocks, x, dtype=np.uint64) for x in (0, step, stream)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * counter[0], np.uint64(0xCD9E8D57) * counter[2]
        counter = [(second >> np.uint64(32)) ^ counter[1] ^ np.uint64(key[0]), second & low,
                   (first >> np.uint64(32)) ^ counter[3] ^ np.uint64(key[1]), first & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(counter, axis=1)


def gumbel(step, stream, shape):
    """Noise of Gumbel's distribution from uniform numbers of 24 bits."""
    count = int(np.prod(shape))
    bits = words(SEED, step, stream, -(-count // 4)).reshape(-1)[:count] >> np.uint64(8)
    uniform = torch.from_numpy(bits.astype(np.float64) / 2.0**24).reshape(shape)
    return -torch.log(-torch.log(uniform + LEAST) + LEAST)


class Joint(torch.nn.Module):
    """Discriminator and generator upon one embedding layer."""

    def __init__(self, sizes, fraction):
        super().__init__()
        self.discriminator = ElectraForPreTraining(make_config(**sizes))
        self.generator = ElectraForMaskedLM(make_config(**generator_sizes(sizes, fraction)))
        self.generator.electra.embeddings = self.discriminator.electra.embeddings
        self.generator.generator_lm_head.weight = self.discriminator.electra.embeddings.word_embeddings.weight
        # Before the samples the compiled step counts a stream for the embeddings and three for every layer.
        self.stream = 3 * sizes["num_hidden_layers"] + 1

    def canonical(self):
        """Parameters by the names of the joint model."""
        names = {}
        for name, parameter in self.named_parameters():
            network, name = name.split(".", 1)
            own = network == "generator" and name.startswith("electra.")
            names["generator." + name.removeprefix("electra.") if own else name] = parameter
        return names

    def losses(self, feeds, step, mask_token):
        """(total, of masked words, of the discriminator)."""
        ids, mask, segments = feeds["input_ids"], feeds["input_mask"], feeds["segment_ids"]
        places, weights = feeds["masked_lm_positions"], feeds["masked_lm_weights"].to(self.dtype())
        rows = torch.arange(len(ids))[:, None].expand_as(places)
        is_draw = weights > 0
        hidden, hides = ids.clone(), is_draw & (feeds["masked_lm_replaced"] > 0)
        hidden[rows[hides], places[hides]] = mask_token
        scores = self.generator(hidden, attention_mask=mask, token_type_ids=segments).logits[rows, places]
        labels = ids[rows, places]
        by_word = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none").reshape(labels.shape)
        mlm = (by_word * weights).sum() / (weights.sum() + EPSILON)
        with torch.no_grad():
            samples = (scores.double() + gumbel(step, self.stream, scores.shape)).argmax(-1)
            fake = replaced(ids, samples, rows[is_draw], places[is_draw], is_draw)
        verdicts = self.discriminator(fake, attention_mask=mask, token_type_ids=segments).logits
        wrong = (fake != ids).to(verdicts.dtype)
        by_token = F.binary_cross_entropy_with_logits(verdicts, wrong, reduction="none")
        real = mask.to(verdicts.dtype)
        disc = (by_token * real).sum() / (real.sum() + EPSILON)
        return mlm + DISCRIMINATOR_WEIGHT * disc, mlm, disc

    def dtype(self):
        return next(self.parameters()).dtype


def replaced(ids, samples, rows, places, is_draw):
    """`ids` with the samples in their places, and the whole part of their mean where there are several."""
    sums, counts = torch.zeros_like(ids), torch.zeros_like(ids)
    sums.index_put_((rows, places), samples[is_draw], accumulate=True)
    counts.index_put_((rows, places), torch.ones_like(rows), accumulate=True)
    return torch.where(counts > 0, sums // counts.clamp(min=1), ids)


def joint_losses_and_gradients(model, feeds, mask_token):
    """Losses by the names of the step's outputs, and gradients by parameter name."""
    model.train()
    model.zero_grad(set_to_none=True)
    parts = model.losses(feeds, 0, mask_token)
    parts[0].backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.canonical().items()}
    return dict(zip(("loss", "mlm_loss", "disc_loss"), (part.item() for part in parts))), gradients


def make_text(config, batch, length, generator):
    """Tokens; sequences end in padding."""
    lengths = torch.tensor([length - item * (length // 5) for item in range(batch)])
    mask = (torch.arange(length)[None, :] < lengths[:, None]).long()
    segments = (torch.arange(length)[None, :] >= (lengths // 2)[:, None]).long() * mask
    return {
        "input_ids": torch.randint(0, config.vocab_size, (batch, length), generator=generator),
        "segment_ids": segments, "input_mask": mask,
    }


def make_draws(text, predictions, generator):
    """Places drawn with repetition, some of which fill up; 85 % hide their words."""
    lengths = text["input_mask"].sum(1)
    batch = len(lengths)
    places = torch.stack([torch.randint(1, int(n) - 1, (predictions,), generator=generator) for n in lengths])
    places[0, 1] = places[0, 0]
    weights = torch.ones(batch, predictions)
    weights[-1, predictions // 2:] = 0
    hides = (torch.rand(batch, predictions, generator=generator) < 0.85).long()
    return {
        "masked_lm_positions": places * (weights > 0).long(), "masked_lm_weights": weights, "masked_lm_replaced": hides,
    }


class JointSpans(torch.nn.Module):
    """XLNet's head for questions upon ELECTRA."""

    def __init__(self, config):
        super().__init__()
        self.electra = ElectraModel(config)
        self.start_logits = XLNetPoolerStartLogits(config)
        self.end_logits = XLNetPoolerEndLogits(config)
        self.answer_class = XLNetPoolerAnswerClass(config)

    def hidden(self, feeds):
        return self.electra(feeds["input_ids"], attention_mask=feeds["input_mask"],
                            token_type_ids=feeds["segment_ids"]).last_hidden_state

    def losses(self, feeds):
        """(total, of starts, of ends, of there being no answer)."""
        hidden = self.hidden(feeds)
        excluded = feeds["p_mask"].to(hidden.dtype)
        first = torch.zeros(len(hidden), dtype=torch.long)
        starts, ends = feeds["start_positions"], feeds["end_positions"]
        start = F.cross_entropy(self.start_logits(hidden, p_mask=excluded), starts)
        end = F.cross_entropy(self.end_logits(hidden, start_positions=starts, p_mask=excluded), ends)
        verdicts = self.answer_class(hidden, start_positions=starts, cls_index=first)
        impossible = F.binary_cross_entropy_with_logits(verdicts, feeds["is_impossible"].to(hidden.dtype))
        return (start + end) / 2 + 0.5 * impossible, start, end, impossible

    def beam(self, feeds, count):
        """Outputs of the prediction by name."""
        with torch.no_grad():
            hidden = self.hidden(feeds)
            excluded = feeds["p_mask"].to(hidden.dtype)
            scores = self.start_logits(hidden, p_mask=excluded)
            start_values, starts = torch.topk(scores.log_softmax(-1), count)
            ends = []
            for k in range(count):
                logits = self.end_logits(hidden, start_positions=starts[:, k], p_mask=excluded)
                ends.append(torch.topk(logits.log_softmax(-1), count))
            state = torch.einsum("blh,bl->bh", hidden, scores.softmax(-1))
            first = torch.zeros(len(hidden), dtype=torch.long)
            return {
                "start_log_probs": start_values, "start_indices": starts.int(),
                "end_log_probs": torch.stack([value for value, _ in ends], 1),
                "end_indices": torch.stack([place for _, place in ends], 1).int(),
                "impossible_logits": self.answer_class(hidden, start_states=state, cls_index=first),
            }
