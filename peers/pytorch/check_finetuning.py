"""Checks that weights of torchvision's Mask R-CNN can be trained further and come back.

    check_finetuning.py make start.pth
    bessemer train mask-rcnn --recipe mask-rcnn-coco-small --data coco/ --weights start.pth --steps 2 --out tuned
    bessemer weights convert tuned tuned.safetensors
    check_finetuning.py check start.pth tuned.safetensors

`make` writes torchvision's own random weights as `.pth`, with the statistics of a batch of noise in the norms. `check` loads both files strictly into torchvision's
model and fails unless every tensor that the recipe trains has changed, every other one (norms, the stem, the first stage) is equal bit
for bit, and the model detects with finite numbers.
"""

import argparse
import sys

import torch
from safetensors.torch import load_file
from torchvision.models.detection import maskrcnn_resnet50_fpn

FROZEN = ("backbone.body.conv1.", "backbone.body.bn1.", "backbone.body.layer1.")


def network():
    return maskrcnn_resnet50_fpn(weights=None, weights_backbone=None)


def is_norm(name):
    parts = name.split(".")
    return name.startswith("backbone.body.") and (parts[-2].startswith("bn") or parts[-3:-1] == ["downsample", "1"])


def make(path):
    torch.manual_seed(0)
    model = network()
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.backbone.body.train()(torch.randn(2, 3, 256, 256))
    torch.save(model.state_dict(), path)


def check(before, after):
    before, after = torch.load(before, weights_only=True), load_file(after)
    model = network()
    for tensors in (before, after):
        model.load_state_dict(tensors, strict=True)
    changed, equal = 0, 0
    for name, tensor in after.items():
        is_equal = torch.equal(before[name], tensor)
        is_fixed = name.startswith(FROZEN) or is_norm(name)
        if is_equal != is_fixed:
            sys.exit(f"error: {name} has {'not ' if is_equal else ''}changed")
        changed, equal = changed + (not is_equal), equal + is_equal
    with torch.inference_mode():
        found = model.eval()([torch.rand(3, 128, 160)])[0]
    if not all(tensor.isfinite().all() for tensor in found.values() if tensor.is_floating_point()):
        sys.exit("error: the detections are not finite")
    print(f"torchvision loads both strictly: {changed} tensors have changed, {equal} are equal, and it detects")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make").add_argument("weights")
    checking = commands.add_parser("check")
    checking.add_argument("before")
    checking.add_argument("after")
    options = parser.parse_args()
    if options.command == "make":
        make(options.weights)
    else:
        check(options.before, options.after)


if __name__ == "__main__":
    main()
