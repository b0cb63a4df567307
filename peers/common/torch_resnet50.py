"""torchvision's ResNet-50 with seeded or given weights."""

import torch
import torchvision
from safetensors.torch import load_file


def make(weights=None, seed=0):
    """`weights`: safetensors with torchvision's names, with or without counters of batches."""
    torch.manual_seed(seed)
    model = torchvision.models.resnet50()
    if weights:
        tensors = load_file(weights)
        for name, tensor in model.state_dict().items():
            if name.endswith("num_batches_tracked"):
                tensors.setdefault(name, tensor)
        model.load_state_dict(tensors)
    return model
