"""Writes what Hugging Face's BERT-base computes for one small batch, for comparison at full size.

    python export_bert_parity.py --out DIR

OUT/weights.safetensors    seeded random initial weights
OUT/feeds.safetensors      the feeds of a training step
OUT/gradients.safetensors  gradient of the loss for every parameter
OUT/expected.json          losses, those of ten AdamW steps, and what a float32 run deviates (relative, and relative L2 per tensor)

Expected values come from a float64 run without dropout and are stored as float32.
"""

import argparse
import copy
from pathlib import Path

import torch

import bert_reference as bert
import resnet_reference as reference

LR = 1e-4
STEPS = 10


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--predictions", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    model = bert.make_model(hidden_act="gelu")
    generator = torch.Generator().manual_seed(args.seed)
    feeds = bert.make_batch(model.config, args.batch_size, args.length, args.predictions, generator)
    rounded_losses, rounded_gradients = bert.losses_and_gradients(copy.deepcopy(model), feeds)
    reference.write_tensors(args.out / "weights.safetensors", dict(model.named_parameters()))
    reference.write_tensors(args.out / "feeds.safetensors", bert.stored_feeds(feeds))
    losses, gradients = bert.losses_and_gradients(model.double(), feeds)
    reference.write_tensors(args.out / "gradients.safetensors", gradients)
    steps = bert.adamw_losses(model, lambda _step: bert.losses(model, feeds)[0], LR, STEPS)
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
