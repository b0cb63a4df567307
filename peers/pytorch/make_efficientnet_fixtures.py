"""Writes the EfficientNet fixtures of crates/models: a narrow network of timm's blocks with all that it computes.

An eighth of B0's width and three tenths of its depth, without dropout and stochastic depth. Every expected value comes
from a float64 run that starts from the stored float32 weights and inputs. The output depends on nothing but this script
and the versions of torch and timm.
"""

import argparse
import copy
from pathlib import Path

import torch
from timm.models.efficientnet import _gen_efficientnet

import make_resnet_fixtures as fixtures
import resnet_reference as reference

WIDTH, DEPTH = 0.125, 0.3
SAME_EPS = 1e-3
# Weights after the steps, and gradients of the second padding, are written for tensors of at most so many elements.
SMALL = 1000


def make_model(**options):
    return _gen_efficientnet("efficientnet_b0", channel_multiplier=WIDTH, depth_multiplier=DEPTH,
                             num_classes=fixtures.CLASSES, **options)


def is_small(tensor):
    return tensor.numel() <= SMALL


def write_same(folder, model, images, labels):
    """The same weights with TensorFlow's SAME padding and another epsilon: logits, loss, small gradients."""
    padded = make_model(pad_type="same", bn_eps=SAME_EPS)
    padded.load_state_dict(model.state_dict())
    padded = padded.double()
    logits_eval = reference.eval_logits(copy.deepcopy(padded), images)
    logits_train, loss, gradients = reference.loss_and_gradients(padded, images, labels)
    reference.write_tensors(folder / "same.safetensors", {"logits_eval": logits_eval, "logits_train": logits_train})
    small = {name: gradient for name, gradient in gradients.items() if is_small(gradient)}
    reference.write_tensors(folder / "gradients_same.safetensors", small)
    reference.write_json(folder / "same.json", {"loss": loss, "bn_eps": SAME_EPS})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=fixtures.FIXTURES,
                        help="fixtures folder (default: crates/models/tests/fixtures)")
    folder = parser.parse_args().out / "efficientnet"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(20190528)
    # Sides that become odd on the way down.
    images, labels = fixtures.random_batch(48, 40, generator)
    model = make_model()
    fixtures.randomise(model, generator)
    fixtures.write_network(folder, model, images, labels, is_small)
    write_same(folder, model, images, labels)


if __name__ == "__main__":
    main()
