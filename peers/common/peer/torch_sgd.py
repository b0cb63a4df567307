"""SGD of PyTorch, as training steps use it."""

import torch


def fused_sgd(groups, training):
    """The fused form, with momentum that is zero at first. Without, it makes that in its first step; if a loss scale leaves this step
    out, nothing is written to it, and the next step reads whatever was in that memory.
    """
    optimizer = torch.optim.SGD(groups, lr=training.lr, momentum=training.momentum, nesterov=training.nesterov, fused=True)
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer
