"""Writes the BERT fixtures of crates/models: two narrow models with all they compute.

The models are Hugging Face's `BertForPreTraining` without dropout; only sizes are small. Every expected value comes from a
float64 run that starts from the stored float32 weights. The output depends on nothing but this script and the versions of
torch and transformers.
"""

import argparse
import copy
from pathlib import Path

import torch

import bert_reference as bert
import resnet_reference as reference

FIXTURES = Path(__file__).resolve().parents[2] / "crates" / "models" / "tests" / "fixtures"
SIZES = {
    "vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 12, "type_vocab_size": 2,
}
ACTIVATIONS = {"bert_gelu": "gelu", "bert_gelu_new": "gelu_new"}
BATCH, LENGTH, PREDICTIONS = 3, 10, 4
LR, STEPS = 0.001, 10


def randomise(model, generator):
    """Weights so large, and norms and biases so far from 1 and 0, that every one of them counts."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if name.endswith("LayerNorm.weight") else 0.0
            parameter.copy_(centre + 0.3 * torch.randn(parameter.shape, generator=generator))


def write(folder, activation):
    generator = torch.Generator().manual_seed(7)
    model = bert.make_model(hidden_act=activation, **SIZES)
    randomise(model, generator)
    feeds = bert.make_batch(model.config, BATCH, LENGTH, PREDICTIONS, generator)
    truth = copy.deepcopy(model).double()
    losses, gradients = bert.losses_and_gradients(truth, feeds)
    trained = copy.deepcopy(model).double()
    steps = bert.adamw_losses(trained, lambda step: bert.losses(trained, feeds)[0], LR, STEPS)
    reference.write_tensors(folder / "weights.safetensors", {n: p for n, p in model.named_parameters()})
    reference.write_tensors(folder / "feeds.safetensors", bert.stored_feeds(feeds))
    reference.write_tensors(folder / "gradients.safetensors", gradients)
    reference.write_tensors(folder / "final_weights.safetensors", dict(trained.named_parameters()))
    reference.write_json(folder / "expected.json", {
        "config": SIZES | {"hidden_act": activation, "layer_norm_eps": model.config.layer_norm_eps},
        "losses": losses,
        "adamw": {
            "lr": LR, "eps": bert.EPS, "weight_decay": bert.WEIGHT_DECAY, "losses": steps,
            "not_decayed": sorted(n for n, _ in model.named_parameters() if bert.no_decay(n)),
        },
    })


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FIXTURES, help="fixtures folder (default: crates/models/tests/fixtures)")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    for folder, activation in ACTIVATIONS.items():
        write(out / folder, activation)


if __name__ == "__main__":
    main()
