"""What the ResNet fixture and parity scripts share: forward, loss, gradients and SGD steps as PyTorch computes them."""

import json

import numpy as np
import torch
from safetensors.numpy import save
from torch.nn import functional as F

LABEL_SMOOTHING = 0.1
MOMENTUM = 0.875
WEIGHT_DECAY = 5e-5


def no_decay(name):
    """Batch norms are recognised by "bn" in the name, so that `downsample.1` and the classifier's bias are decayed."""
    return "bn" in name


def damp_blocks(model, gamma):
    """Starts the last batch norm of each block at `gamma`, which keeps rounding from growing from block to block."""
    for name, parameter in model.named_parameters():
        if name.endswith("bn3.weight"):
            torch.nn.init.constant_(parameter, gamma)


def make_sgd(model, lr, fused=False):
    """v = MOMENTUM * v + (g + decay * w); w -= lr * v; v starts as the first gradient."""
    groups = [
        {"params": [p for n, p in model.named_parameters() if not no_decay(n)], "weight_decay": WEIGHT_DECAY},
        {"params": [p for n, p in model.named_parameters() if no_decay(n)], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(groups, lr=lr, momentum=MOMENTUM, fused=fused)


def smoothed_loss(logits, targets):
    """Mean cross entropy; `targets` are class indices or distributions, smoothed alike."""
    return F.cross_entropy(logits, targets, label_smoothing=LABEL_SMOOTHING)


def loss_and_gradients(model, images, targets):
    """Train-mode (logits, loss, gradients by parameter name). Running statistics advance by one step."""
    model.train()
    model.zero_grad(set_to_none=True)
    logits = model(images)
    loss = smoothed_loss(logits, targets)
    loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return logits.detach(), loss.item(), gradients


def sgd_losses(model, images, targets, lr, steps):
    """Losses of `steps` updates on one batch, each before its update."""
    model.train()
    optimizer = make_sgd(model, lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = smoothed_loss(model(images), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def eval_logits(model, images):
    model.eval()
    with torch.inference_mode():
        return model(images)


def relative_l2(value, truth):
    """||value - truth|| / ||truth||, in float64; 0 for a tensor of zeros that are zeros."""
    value, truth = value.double(), truth.double()
    return (torch.linalg.vector_norm(value - truth) / torch.linalg.vector_norm(truth).clamp(min=1e-300)).item()


def distances(values, truths):
    return {name: relative_l2(values[name], truths[name]) for name in truths}


def to_nhwc(images):
    return images.permute(0, 2, 3, 1)


def write_tensors(path, tensors):
    """Floats are stored as f32; integers keep their type."""
    arrays = {}
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().numpy()
        arrays[name] = np.ascontiguousarray(array, dtype=np.float32 if array.dtype == np.float64 else array.dtype)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(save(arrays))


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")
