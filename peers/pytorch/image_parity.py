"""What the parity scripts of image classifiers share: arguments, a batch of photos, and all that PyTorch computes of it.

OUT/weights.safetensors    initial weights and running statistics by the peer's names, OIHW
OUT/tensors.safetensors    `images` u8 [N, 224, 224, 3], `labels` i32 [N], `logits_eval`, `logits_train` [N, 1000]
OUT/gradients.safetensors  gradient of the train-mode loss for all parameters
OUT/statistics_after_one_step.safetensors  running means and variances after that pass
OUT/expected.json          losses, settings, and what a float32 run deviates (relative L2 per tensor)

Expected values come from a float64 run and are stored as float32. Images enter as (x / 255 - mean) / std.
"""

import argparse
import copy
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import resnet_reference as reference

MEAN = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64).view(1, 3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64).view(1, 3, 1, 1)
SIZE = 224
CLASSES = 1000


def parser(description, lr):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=Path, help="class folders of 224x224 photos; default: random pixels")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=lr)
    parser.add_argument("--steps", type=int, default=10, help="SGD steps on the same batch")
    parser.add_argument("--threads", type=int, default=2)
    return parser


def read_photos(folder, count):
    """The first photo of each of the first `count` classes."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())[:count]
    photos = [np.asarray(Image.open(min(path.iterdir())).convert("RGB")) for path in classes]
    for path, photo in zip(classes, photos):
        if photo.shape != (SIZE, SIZE, 3):
            raise SystemExit(f"{path}: the first photo is {photo.shape[1]}x{photo.shape[0]}, expected {SIZE}x{SIZE}")
    return torch.from_numpy(np.stack(photos))


def normalise(images):
    """u8 [N, H, W, 3] to float64 [N, 3, H, W], rounded to what float32 holds."""
    normalised = (images.permute(0, 3, 1, 2).double() / 255 - MEAN) / STD
    return normalised.float().double()


def export(args, make_model, facts):
    """Writes the files for a seeded model. `facts` are added to `expected.json`."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    model = make_model()
    if args.images:
        images = read_photos(args.images, args.batch_size)
    else:
        images = torch.randint(0, 256, (args.batch_size, SIZE, SIZE, 3), dtype=torch.uint8)
    labels = torch.randint(0, CLASSES, (len(images),))
    inputs, rounded_inputs = normalise(images), normalise(images).float()

    truth, rounded = copy.deepcopy(model).double(), copy.deepcopy(model)
    logits_eval = reference.eval_logits(truth, inputs)
    logits_train, loss, gradients = reference.loss_and_gradients(truth, inputs, labels)
    rounded_eval = reference.eval_logits(rounded, rounded_inputs)
    rounded_train, rounded_loss, rounded_gradients = reference.loss_and_gradients(rounded, rounded_inputs, labels)
    statistics = {name: tensor for name, tensor in truth.state_dict().items() if "running_" in name}
    rounded_statistics = rounded.state_dict()

    losses = reference.sgd_losses(copy.deepcopy(model).double(), inputs, labels, args.lr, args.steps)
    losses_rounded = reference.sgd_losses(copy.deepcopy(model), rounded_inputs, labels, args.lr, args.steps)

    reference.write_tensors(args.out / "weights.safetensors", model.state_dict())
    reference.write_tensors(args.out / "tensors.safetensors", {
        "images": images, "labels": labels.to(torch.int32), "logits_eval": logits_eval, "logits_train": logits_train,
    })
    reference.write_tensors(args.out / "gradients.safetensors", gradients)
    reference.write_tensors(args.out / "statistics_after_one_step.safetensors", statistics)
    reference.write_json(args.out / "expected.json", {
        "torch": torch.__version__, "seed": args.seed, **facts,
        "label_smoothing": reference.LABEL_SMOOTHING,
        "mean": MEAN.flatten().tolist(), "std": STD.flatten().tolist(),
        "loss": loss,
        "sgd": {"lr": args.lr, "momentum": reference.MOMENTUM, "weight_decay": reference.WEIGHT_DECAY,
                "not_decayed": [n for n, _ in model.named_parameters() if reference.no_decay(n)], "losses": losses},
        "float32": {
            "loss": rounded_loss, "losses": losses_rounded,
            "relative_l2": {
                "logits_eval": reference.relative_l2(rounded_eval, logits_eval),
                "logits_train": reference.relative_l2(rounded_train, logits_train),
                "gradients": reference.distances(rounded_gradients, gradients),
                "statistics_after_one_step": reference.distances(rounded_statistics, statistics),
            },
        },
    })
