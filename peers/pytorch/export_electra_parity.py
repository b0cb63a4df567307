"""Writes what ELECTRA-base of Hugging Face's parts computes for one small batch of pre-training, for comparison at full size.

    python export_electra_parity.py --out DIR

OUT/weights.safetensors    seeded random initial weights
OUT/feeds.safetensors      the feeds of a training step
OUT/gradients.safetensors  gradient of the loss for every parameter
OUT/expected.json          losses, and what a float32 run deviates (relative, and relative L2 per tensor)

Expected values come from a float64 run without dropout and are stored as float32.
"""

import argparse
import copy
from pathlib import Path

import torch

import bert_reference as bert
import electra_reference as electra
import resnet_reference as reference

SIZES = {
    "vocab_size": 30522, "embedding_size": 768, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
}
FRACTION = 1 / 3
MASK_TOKEN = 103
LR = 1e-4
STEPS = 10


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--predictions", type=int, default=19)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    model = electra.Joint(SIZES, FRACTION)
    generator = torch.Generator().manual_seed(args.seed)
    text = electra.make_text(model.discriminator.config, args.batch_size, args.length, generator)
    feeds = text | electra.make_draws(text, args.predictions, generator)
    rounded_losses, rounded_gradients = electra.joint_losses_and_gradients(copy.deepcopy(model), feeds, MASK_TOKEN)
    reference.write_tensors(args.out / "weights.safetensors", model.canonical())
    reference.write_tensors(args.out / "feeds.safetensors", bert.stored_feeds(feeds))
    losses, gradients = electra.joint_losses_and_gradients(model.double(), feeds, MASK_TOKEN)
    reference.write_tensors(args.out / "gradients.safetensors", gradients)
    steps = bert.adamw_losses(model, lambda step: model.losses(feeds, step, MASK_TOKEN)[0], LR, STEPS)
    reference.write_json(args.out / "expected.json", {
        "losses": losses,
        "adamw": {"lr": LR, "eps": bert.EPS, "weight_decay": bert.WEIGHT_DECAY, "losses": steps},
        "float32": {
            "losses": {name: abs(rounded_losses[name] - value) / abs(value) for name, value in losses.items()},
            "gradients": reference.distances(rounded_gradients, gradients),
        },
    })


if __name__ == "__main__":
    main()
