"""Writes the ELECTRA fixtures of crates/models: narrow networks with all they compute.

They are made of Hugging Face's `ElectraForPreTraining`, `ElectraForMaskedLM` and `ElectraForQuestionAnswering` and of XLNet's heads,
without dropout; only sizes are small. Every expected value comes from a float64 run that starts from the stored float32 weights. The
output depends on nothing but these scripts and the versions of torch and transformers.
"""

import argparse
import copy
from pathlib import Path

import torch
from transformers import ElectraForQuestionAnswering

import bert_reference as bert
import electra_reference as electra
import resnet_reference as reference
from make_bert_fixtures import FIXTURES, randomise

SIZES = {
    "vocab_size": 41, "embedding_size": 12, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 12, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
}
FRACTION = 0.25
MASK_TOKEN = 3
BATCH, LENGTH, PREDICTIONS, BEAM = 3, 10, 4, 3
LR, STEPS = 0.001, 10


def write(folder, model, named, losses_of, names, feeds, more):
    """`losses_of(model, step)` gives the losses called `names`, the first of which is minimised; `named(model)` the parameters."""
    reference.write_tensors(folder / "weights.safetensors", named(model))
    reference.write_tensors(folder / "feeds.safetensors", bert.stored_feeds(feeds))
    truth = copy.deepcopy(model).double()
    losses = losses_of(truth, 0)
    losses[0].backward()
    reference.write_tensors(folder / "gradients.safetensors", {name: p.grad for name, p in named(truth).items()})
    trained = copy.deepcopy(model).double()
    steps = bert.adamw_losses(trained, lambda step: losses_of(trained, step)[0], LR, STEPS)
    reference.write_tensors(folder / "final_weights.safetensors", named(trained))
    reference.write_json(folder / "expected.json", {
        "config": SIZES, "losses": {name: loss.item() for name, loss in zip(names, losses)},
        "adamw": {"lr": LR, "eps": bert.EPS, "weight_decay": bert.WEIGHT_DECAY, "losses": steps,
                  "not_decayed": sorted(name for name in named(model) if bert.no_decay(name))},
    } | more)


def write_pretraining(folder, generator):
    model = electra.Joint(SIZES, FRACTION)
    randomise(model, generator)
    text = electra.make_text(model.discriminator.config, BATCH, LENGTH, generator)
    feeds = text | electra.make_draws(text, PREDICTIONS, generator)
    files = {"discriminator": sorted(model.discriminator.state_dict()), "generator": sorted(model.generator.state_dict())}
    write(folder, model, electra.Joint.canonical, lambda model, step: model.losses(feeds, step, MASK_TOKEN),
          ("loss", "mlm_loss", "disc_loss"), feeds,
          {"generator_fraction": FRACTION, "mask_token": MASK_TOKEN, "files": files})
    truth = copy.deepcopy(model).double()
    inputs = dict(input_ids=feeds["input_ids"], attention_mask=feeds["input_mask"], token_type_ids=feeds["segment_ids"])
    rows = torch.arange(BATCH)[:, None].expand(BATCH, PREDICTIONS)
    reference.write_tensors(folder / "outputs.safetensors", {
        "disc_logits": truth.discriminator(**inputs).logits,
        "mlm_logits": truth.generator(**inputs).logits[rows, feeds["masked_lm_positions"]],
    })


def question_feeds(config, generator):
    feeds = electra.make_text(config, BATCH, LENGTH, generator)
    return feeds | {"start_positions": torch.tensor([5, 0, 4]), "end_positions": torch.tensor([7, 0, 4])}


def write_plain(folder, generator):
    model = ElectraForQuestionAnswering(electra.make_config(**SIZES))
    randomise(model, generator)
    # The last end is beyond the sequence and does not count.
    feeds = question_feeds(model.config, generator) | {"end_positions": torch.tensor([7, 0, LENGTH + 1])}
    inputs = dict(input_ids=feeds["input_ids"], attention_mask=feeds["input_mask"], token_type_ids=feeds["segment_ids"])

    def losses(model, _step):
        return (model(**inputs, start_positions=feeds["start_positions"], end_positions=feeds["end_positions"]).loss,)

    write(folder, model, lambda model: dict(model.named_parameters()), losses, ("loss",), feeds, {})
    output = copy.deepcopy(model).double()(**inputs)
    reference.write_tensors(folder / "outputs.safetensors",
                            {"start_logits": output.start_logits, "end_logits": output.end_logits})


def write_joint(folder, generator):
    model = electra.JointSpans(electra.make_config(**SIZES))
    randomise(model, generator)
    feeds = question_feeds(model.electra.config, generator)
    excluded = 1.0 - feeds["segment_ids"].float()
    excluded[:, 0] = 0.0
    excluded[2, 4] = 0.0
    feeds |= {"p_mask": excluded, "is_impossible": torch.tensor([0.0, 1.0, 0.0])}
    write(folder, model, lambda model: dict(model.named_parameters()), lambda model, _step: model.losses(feeds),
          ("loss", "start_loss", "end_loss", "impossible_loss"), feeds, {"beam": BEAM})
    outputs = copy.deepcopy(model).double().beam(feeds, BEAM)
    reference.write_tensors(folder / "outputs.safetensors", outputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FIXTURES, help="fixtures folder (default: crates/models/tests/fixtures)")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    for folder, write_case in (
        ("electra_pretraining", write_pretraining), ("electra_squad_plain", write_plain), ("electra_squad_joint", write_joint),
    ):
        write_case(out / folder, torch.Generator().manual_seed(11))


if __name__ == "__main__":
    main()
