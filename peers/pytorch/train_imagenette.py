"""Trains torchvision's ResNet-50 from random weights on a folder of ten ImageNet classes.

The independent counterpart of the `imagenette-small` recipe: SGD with momentum (v = m*v + g, w -= lr*v), linear warm-up
and cosine decay per step, random resized crop and flip. Expects DATA/train/CLASS/* and DATA/val/CLASS/*. Prints one line
per epoch and a JSON line at the end.
"""

import argparse
import json
import math
import resource
import time
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image
from torch.nn import functional as F
from torchvision.transforms import InterpolationMode
from torchvision.transforms import v2

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--image-size", type=int, default=64, help="side of the training crop")
    parser.add_argument("--eval-resize", type=int, default=80, help="short side before the centre crop")
    parser.add_argument("--eval-size", type=int, default=80, help="side of the centre crop")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--stop-after", type=int, default=None, help="stop after this many epochs of the schedule")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--warmup-epochs", type=float, default=4)
    parser.add_argument("--momentum", type=float, default=0.875)
    parser.add_argument("--weight-decay", type=float, default=5e-4, help="applied where the name does not contain 'bn'")
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--mixup", type=float, default=0.0, help="alpha of the Beta distribution, one lambda per batch")
    parser.add_argument("--min-scale", type=float, default=0.35, help="least area of the random resized crop")
    parser.add_argument("--zero-init-gamma", action="store_true", help="last batch norm of each block starts at gamma 0")
    parser.add_argument("--eval-every", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="autocast to bf16")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Photos(torch.utils.data.Dataset):
    """Class folders decoded to memory; items are (uint8 [3, S, S], label)."""

    def __init__(self, folder, transform):
        classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.labels, self.images = [], []
        for label, name in enumerate(classes):
            for path in sorted((folder / name).iterdir()):
                self.images.append(np.asarray(Image.open(path).convert("RGB")))
                self.labels.append(label)
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.transform(Image.fromarray(self.images[index]))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), self.labels[index]


def normalise(images):
    return ((images.float() / 255 - MEAN) / STD).contiguous(memory_format=torch.channels_last)


def make_loaders(args):
    train_transform = v2.Compose([
        v2.RandomResizedCrop(args.image_size, scale=(args.min_scale, 1.0), interpolation=InterpolationMode.BILINEAR),
        v2.RandomHorizontalFlip(),
    ])
    eval_transform = v2.Compose([
        v2.Resize(args.eval_resize, interpolation=InterpolationMode.BILINEAR),
        v2.CenterCrop(args.eval_size),
    ])
    train = torch.utils.data.DataLoader(
        Photos(args.data / "train", train_transform), args.batch_size, shuffle=True, drop_last=True,
        num_workers=args.workers, persistent_workers=args.workers > 0,
    )
    evaluation = torch.utils.data.DataLoader(Photos(args.data / "val", eval_transform), 50)
    return train, evaluation


def make_optimizer(model, args):
    decayed = [p for name, p in model.named_parameters() if "bn" not in name]
    plain = [p for name, p in model.named_parameters() if "bn" in name]
    groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=args.lr, momentum=args.momentum, fused=True)


def learning_rate(step, steps_per_epoch, args):
    """Rate of `step` (from 0): linear to the full rate, then a cosine over what remains."""
    warmup = round(args.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return args.lr * (step + 1) / warmup
    progress = (step - warmup) / (args.epochs * steps_per_epoch - warmup)
    return args.lr * 0.5 * (1 + math.cos(math.pi * progress))


def train_loss(model, images, labels, args):
    if args.mixup == 0:
        return F.cross_entropy(model(images).float(), labels, label_smoothing=args.label_smoothing)
    share = float(np.random.beta(args.mixup, args.mixup))
    order = torch.randperm(len(labels))
    logits = model(share * images + (1 - share) * images[order]).float()
    targets = F.one_hot(labels, logits.shape[1]).float()
    targets = share * targets + (1 - share) * targets[order]
    return F.cross_entropy(logits, targets, label_smoothing=args.label_smoothing)


@torch.inference_mode()
def evaluate(model, loader):
    model.eval()
    correct, loss, count = 0, 0.0, 0
    for images, labels in loader:
        logits = model(normalise(images)).float()
        correct += (logits.argmax(1) == labels).sum().item()
        loss += F.cross_entropy(logits, labels, reduction="sum").item()
        count += len(labels)
    model.train()
    return correct / count, loss / count


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    torch.set_num_threads(args.threads)
    train, evaluation = make_loaders(args)
    model = torchvision.models.resnet50(num_classes=10, zero_init_residual=args.zero_init_gamma)
    model = model.to(memory_format=torch.channels_last).train()
    optimizer = make_optimizer(model, args)

    curve, step, start = [], 0, time.time()
    last_epoch = args.stop_after or args.epochs
    for epoch in range(last_epoch):
        losses = []
        for images, labels in train:
            rate = learning_rate(step, len(train), args)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.bf16):
                loss = train_loss(model, normalise(images), labels, args)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
        point = {"epoch": epoch + 1, "loss": round(float(np.mean(losses)), 4), "lr": round(rate, 6),
                 "wall_s": round(time.time() - start, 1), "cpu_s": round(time.process_time(), 1)}
        if (epoch + 1) % args.eval_every == 0 or epoch + 1 == last_epoch:
            top1, val_loss = evaluate(model, evaluation)
            point |= {"top1": round(top1, 4), "val_loss": round(val_loss, 4)}
        curve.append(point)
        print(" ".join(f"{key} {value}" for key, value in point.items()), flush=True)

    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    print(json.dumps({
        "settings": settings, "steps": step, "top1": curve[-1]["top1"], "loss": curve[-1]["loss"],
        "wall_s": curve[-1]["wall_s"], "cpu_s": curve[-1]["cpu_s"],
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "curve": curve,
    }))


if __name__ == "__main__":
    main()
