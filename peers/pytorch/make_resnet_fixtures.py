"""Writes the ResNet fixtures of crates/models: two narrow networks with all they compute, and learning-rate schedules.

The networks are built of torchvision's own blocks and carry torchvision's names; only widths and depths are small.
Every expected value comes from a float64 run that starts from the stored float32 weights and inputs. The output depends
on nothing but this script and the versions of torch and torchvision.
"""

import argparse
import copy
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models.resnet import BasicBlock, Bottleneck

import resnet_reference as reference

FIXTURES = Path(__file__).resolve().parents[2] / "crates" / "models" / "tests" / "fixtures"
CLASSES = 10
STEM = 8
PLANES = (8, 16, 32, 64)
BATCH = 4
SGD_LR = 0.005
SGD_STEPS = 10
MIXUP_LAMBDA = 0.3
MIXUP_ORDER = (2, 0, 3, 1)


class SmallResNet(nn.Module):
    """torchvision's ResNet v1.5 with chosen widths: stem 7x7/2, max pool 3x3/2, four stages, mean over H and W, `fc`."""

    def __init__(self, block, layers, stem=STEM, all_planes=PLANES, norm=nn.BatchNorm2d):
        super().__init__()
        self.channels, self.norm = stem, norm
        self.conv1 = nn.Conv2d(3, stem, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(stem)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        for index, (planes, blocks) in enumerate(zip(all_planes, layers)):
            self.add_module(f"layer{index + 1}", self.stage(block, planes, blocks, 1 if index == 0 else 2))
        self.fc = nn.Linear(self.channels, CLASSES)

    def stage(self, block, planes, blocks, stride):
        width = planes * block.expansion
        shortcut = None
        if stride != 1 or self.channels != width:
            shortcut = nn.Sequential(nn.Conv2d(self.channels, width, 1, stride, bias=False), self.norm(width))
        first = block(self.channels, planes, stride, shortcut, norm_layer=self.norm)
        self.channels = width
        return nn.Sequential(first, *(block(width, planes, norm_layer=self.norm) for _ in range(blocks - 1)))

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def randomise(model, generator):
    """He-normal convolutions; batch norms and their statistics scattered around identity so that none is symmetric."""
    def normal(like, mean, std):
        return mean + std * torch.randn(like.shape, generator=generator)

    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                fan_in = module.weight[0].numel()
                module.weight.copy_(normal(module.weight, 0.0, math.sqrt(2 / fan_in)))
                if module.bias is not None:
                    module.bias.copy_(normal(module.bias, 0.0, 0.2))
            elif isinstance(module, nn.BatchNorm2d):
                module.weight.copy_(normal(module.weight, 1.0, 0.2))
                module.bias.copy_(normal(module.bias, 0.0, 0.2))
                module.running_mean.copy_(normal(module.running_mean, 0.0, 0.3))
                module.running_var.copy_(0.5 + torch.rand(module.running_var.shape, generator=generator))
            elif isinstance(module, nn.Linear):
                module.weight.copy_(normal(module.weight, 0.0, math.sqrt(1 / module.in_features)))
                module.bias.copy_(normal(module.bias, 0.0, 0.1))


def same_padding(size, kernel, stride):
    """TensorFlow's SAME: (before, after) along one axis; the odd element goes after."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def use_same_padding(model):
    """Makes every strided convolution and the max pool pad as TensorFlow's SAME; returns a log of the pads applied."""
    pads = {}

    def pad_input(name, kernel, fill):
        def hook(_, inputs):
            top, bottom = same_padding(inputs[0].shape[2], kernel, 2)
            left, right = same_padding(inputs[0].shape[3], kernel, 2)
            pads[name] = {"top": top, "bottom": bottom, "left": left, "right": right}
            return F.pad(inputs[0], (left, right, top, bottom), value=fill)
        return hook

    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and module.stride == (2, 2) and module.kernel_size[0] > 1:
            module.padding = (0, 0)
            module.register_forward_pre_hook(pad_input(name, module.kernel_size[0], 0.0))
        elif isinstance(module, nn.MaxPool2d):
            module.padding = 0
            module.register_forward_pre_hook(pad_input(name, module.kernel_size, -math.inf))
    return pads


def random_batch(height, width, generator):
    """Float64 images [N, 3, H, W] whose values float32 holds exactly, and labels."""
    images = torch.randn(BATCH, 3, height, width, generator=generator).double()
    return images, torch.randint(0, CLASSES, (BATCH,), generator=generator)


def stored_inputs(images, labels):
    return {"input": reference.to_nhwc(images), "labels": labels.to(torch.int32)}


def running_statistics(model):
    return {name: tensor for name, tensor in model.state_dict().items() if "running_" in name}


def write_network(folder, model, images, labels, is_final_written=lambda tensor: True):
    """Weights, gradients, statistics, ten steps and eval/train logits of `model` (float32, torch padding). Of the weights
    after the steps those are written for which `is_final_written` holds."""
    truth = copy.deepcopy(model).double()
    logits_eval = reference.eval_logits(truth, images)
    logits_train, loss, gradients = reference.loss_and_gradients(truth, images, labels)
    rounded = copy.deepcopy(model)
    rounded_eval = reference.eval_logits(rounded, images.float())
    rounded_train, rounded_loss, rounded_gradients = reference.loss_and_gradients(rounded, images.float(), labels)

    trained, trained_rounded = copy.deepcopy(model).double(), copy.deepcopy(model)
    losses = reference.sgd_losses(trained, images, labels, SGD_LR, SGD_STEPS)
    losses_rounded = reference.sgd_losses(trained_rounded, images.float(), labels, SGD_LR, SGD_STEPS)

    reference.write_tensors(folder / "weights.safetensors", model.state_dict())
    reference.write_tensors(folder / "gradients.safetensors", gradients)
    final = {name: tensor for name, tensor in trained.state_dict().items() if is_final_written(tensor)}
    reference.write_tensors(folder / "final_weights.safetensors", final)
    reference.write_tensors(folder / "tensors.safetensors", stored_inputs(images, labels) | {
        "logits_eval": logits_eval, "logits_train": logits_train,
    })
    reference.write_tensors(folder / "statistics_after_one_step.safetensors", running_statistics(truth))
    final = {name: tensor for name, tensor in final.items() if tensor.is_floating_point()}
    reference.write_json(folder / "expected.json", {
        "parameters": sum(p.numel() for p in model.parameters()),
        "label_smoothing": reference.LABEL_SMOOTHING,
        "loss": loss,
        "sgd": {
            "lr": SGD_LR, "momentum": reference.MOMENTUM, "weight_decay": reference.WEIGHT_DECAY,
            "not_decayed": [n for n, _ in model.named_parameters() if reference.no_decay(n)],
            "losses": losses,
        },
        "float32": {
            "loss": rounded_loss, "losses": losses_rounded,
            "relative_l2": {
                "logits_eval": reference.relative_l2(rounded_eval, logits_eval),
                "logits_train": reference.relative_l2(rounded_train, logits_train),
                "gradients": reference.distances(rounded_gradients, gradients),
                "final_weights": reference.distances(trained_rounded.state_dict(), final),
            },
        },
    })


def write_mixup(folder, model, images, labels):
    """One train-mode pass on x' = l*x + (1-l)*x[order] with targets mixed alike, then smoothed."""
    order = list(MIXUP_ORDER)
    one_hot = F.one_hot(labels, CLASSES).double()
    mixed = MIXUP_LAMBDA * images + (1 - MIXUP_LAMBDA) * images[order]
    targets = MIXUP_LAMBDA * one_hot + (1 - MIXUP_LAMBDA) * one_hot[order]
    logits, loss, gradients = reference.loss_and_gradients(copy.deepcopy(model).double(), mixed, targets)
    smoothed = (1 - reference.LABEL_SMOOTHING) * targets + reference.LABEL_SMOOTHING / CLASSES
    reference.write_tensors(folder / "mixup.safetensors", {
        "mixed_input": reference.to_nhwc(mixed), "smoothed_targets": smoothed, "logits_train": logits,
        "gradient.conv1.weight": gradients["conv1.weight"], "gradient.fc.weight": gradients["fc.weight"],
    })
    reference.write_json(folder / "mixup.json", {"lambda": MIXUP_LAMBDA, "order": order, "loss": loss})


def write_same(folder, model, odd_images, even_images, labels):
    """SAME padding: every gradient on sizes that halve evenly, eval and train logits also on sizes that do not."""
    padded = copy.deepcopy(model).double()
    pads = use_same_padding(padded)
    tensors, report = stored_inputs(even_images, labels), {}
    for name, images in (("even", even_images), ("odd", odd_images)):
        network = padded if name == "odd" else copy.deepcopy(padded)
        tensors[f"logits_eval.{name}"] = reference.eval_logits(network, images)
        logits, loss, gradients = reference.loss_and_gradients(network, images, labels)
        tensors[f"logits_train.{name}"] = logits
        report[name] = {"image_size": list(images.shape[2:]), "loss": loss, "pads": copy.deepcopy(pads)}
        if name == "even":
            reference.write_tensors(folder / "gradients_same.safetensors", gradients)
    reference.write_tensors(folder / "same.safetensors", tensors)
    reference.write_json(folder / "same.json", report)


def torch_schedule(rate_of_epoch, epochs, steps_per_epoch):
    return [rate_of_epoch(epoch) for epoch in range(epochs) for _ in range(steps_per_epoch)]


def warmed_up(base, warmup, after):
    """The rate of an epoch: base*(epoch+1)/warmup during warm-up, then `after(epoch)`."""
    return lambda epoch: base * (epoch + 1) / warmup if epoch < warmup else after(epoch)


def torch_cosine(base, warmup, epochs, end=0.0):
    def cosine(epoch):
        return end + 0.5 * (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup))) * (base - end)

    return warmed_up(base, warmup, cosine)


def torch_linear(base, warmup, epochs):
    return warmed_up(base, warmup, lambda epoch: base * (1 - (epoch - warmup) / (epochs - warmup)))


def torch_step(base, warmup, boundaries, factor):
    return warmed_up(base, warmup, lambda epoch: base * factor ** sum(epoch >= boundary for boundary in boundaries))


def tf1_rates(base, warmup, epochs, steps_per_epoch, decay):
    """Per step: base*step/warmup_steps, then `decay(step)`, whose clock also started at step 0."""
    warmup_steps = int(warmup * steps_per_epoch)
    return [base * step / warmup_steps if step < warmup_steps else decay(step) for step in range(epochs * steps_per_epoch)]


def tf1_cosine(base, total):
    return lambda step: 0.5 * base * (1 + math.cos(math.pi * min(step, total) / total))


def tf1_step(base, steps_per_epoch, boundaries, factor):
    """TensorFlow's piecewise constant: the boundary step itself still has the earlier rate."""
    return lambda step: base * factor ** sum(step > steps_per_epoch * epoch for epoch in boundaries)


def write_schedules(path):
    """`rates[i]` is the rate of step i. Formulas of NVIDIA DeepLearningExamples: `torch` per epoch, `tf1` per step."""
    cases = []

    def add(name, epochs, steps_per_epoch, base, warmup, rates, **options):
        cases.append({"name": name, "epochs": epochs, "steps_per_epoch": steps_per_epoch, "lr": base,
                      "warmup_epochs": warmup, **options, "rates": rates})

    add("torch_cosine", 5, 7, 2.048, 2, torch_schedule(torch_cosine(2.048, 2, 5), 5, 7), end_lr=0.0)
    add("torch_cosine_no_warmup", 4, 3, 0.1, 0, torch_schedule(torch_cosine(0.1, 0, 4), 4, 3), end_lr=0.0)
    add("torch_cosine_end_lr", 6, 2, 0.4, 1, torch_schedule(torch_cosine(0.4, 1, 6, 0.01), 6, 2), end_lr=0.01)
    add("torch_linear", 5, 7, 0.5, 2, torch_schedule(torch_linear(0.5, 2, 5), 5, 7))
    add("torch_step", 90, 1, 0.1, 5, torch_schedule(torch_step(0.1, 5, (30, 60, 80), 0.1), 90, 1),
        boundaries=[30, 60, 80], factor=0.1)
    add("tf1_cosine", 5, 7, 1.024, 2, tf1_rates(1.024, 2, 5, 7, tf1_cosine(1.024, 35)))
    add("tf1_cosine_no_warmup", 3, 4, 0.256, 0, tf1_rates(0.256, 0, 3, 4, tf1_cosine(0.256, 12)))
    add("tf1_step", 95, 2, 0.256, 8, tf1_rates(0.256, 8, 95, 2, tf1_step(0.256, 2, (30, 60, 80, 90), 0.1)),
        boundaries=[30, 60, 80, 90], factor=0.1)
    reference.write_json(path, cases)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FIXTURES, help="fixtures folder (default: crates/models/tests/fixtures)")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(20240607)
    images, labels = random_batch(48, 40, generator)
    even_images, _ = random_batch(64, 32, generator)
    for folder, block in ((out / "resnet_bottleneck", Bottleneck), (out / "resnet_basic", BasicBlock)):
        model = SmallResNet(block, (1, 2, 1, 1))
        randomise(model, generator)
        write_network(folder, model, images, labels)
        if block is Bottleneck:
            write_mixup(folder, model, images, labels)
            write_same(folder, model, images, even_images, labels)
    write_schedules(out / "schedules.json")


if __name__ == "__main__":
    main()
