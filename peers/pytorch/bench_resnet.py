"""Times torchvision's ResNet-50 on batches held in memory and prints one JSON line.

    python bench_resnet.py train|infer BATCH STEPS WARMUP [--compile] [--weights FILE] [--precision fp32|bf16]

A training step is everything a user waits for: clearing gradients, forward, label-smoothed loss, backward, SGD with momentum.
"""

import argparse
import json
import platform
import resource
import time

import torch
import torchvision
from safetensors.torch import load_file

import resnet_reference as reference

SIZE = 224
CLASSES = 1000


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["train", "infer"])
    parser.add_argument("batch_size", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("warmup", type=int)
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--weights", help="safetensors with torchvision's names (default: seeded random)")
    parser.add_argument("--batches", help="safetensors with `images` f32 [K, N, H, W, 3], normalised, and `labels` i32 [K, N]")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_model(args):
    model = torchvision.models.resnet50()
    if args.weights:
        tensors = load_file(args.weights)
        for name, tensor in model.state_dict().items():
            if name.endswith("num_batches_tracked"):
                tensors.setdefault(name, tensor)
        model.load_state_dict(tensors)
    return model.to(memory_format=torch.channels_last)


def make_batches(args):
    """(images [N, 3, H, W] channels last, labels [N]) pairs, cycled over the steps."""
    if args.batches:
        tensors = load_file(args.batches)
        images, labels = tensors["images"], tensors["labels"].long()
        if images.shape[1] != args.batch_size:
            raise SystemExit(f"{args.batches}: batches of {images.shape[1]}, but BATCH is {args.batch_size}")
        return list(zip(images.permute(0, 1, 4, 2, 3), labels))
    images = torch.randn(args.batch_size, SIZE, SIZE, 3).permute(0, 3, 1, 2)
    return [(images, torch.randint(0, CLASSES, (args.batch_size,)))]


def make_train_step(model, args):
    model.train()
    optimizer = reference.make_sgd(model, args.lr)
    run = torch.compile(model) if args.compile else model

    def step(images, labels):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            logits = run(images)
        loss = reference.smoothed_loss(logits.float(), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def make_infer_step(model, args):
    model.eval()
    run = torch.compile(model) if args.compile else model

    @torch.inference_mode()
    def step(images, _):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            run(images)

    return step


def quantile(ordered, q):
    """Nearest rank: the least value that at least `q` of the sample do not exceed."""
    rank = -(-round(q * 100) * len(ordered) // 100)
    return ordered[max(rank, 1) - 1]


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    model, batches = make_model(args), make_batches(args)
    step = make_train_step(model, args) if args.mode == "train" else make_infer_step(model, args)

    losses, stamps = [], []
    for index in range(args.warmup + args.steps):
        if index == args.warmup:
            stamps.append(time.perf_counter())
        losses.append(step(*batches[index % len(batches)]))
        if index >= args.warmup:
            stamps.append(time.perf_counter())

    step_ms = sorted((after - before) * 1000 for before, after in zip(stamps, stamps[1:]))
    print(json.dumps({
        "framework": "pytorch", "framework_version": torch.__version__,
        "options": {"compile": args.compile, "channels_last": True},
        "model": "resnet50", "mode": args.mode, "precision": args.precision, "device": "cpu",
        "device_name": platform.processor() or platform.machine(), "threads": args.threads,
        "batch_size": args.batch_size, "warmup": args.warmup, "steps": args.steps,
        "throughput": args.batch_size * args.steps / (stamps[-1] - stamps[0]), "unit": "images/s",
        "step_ms": {
            "mean": sum(step_ms) / len(step_ms), "min": step_ms[0],
            **{f"p{percent}": quantile(step_ms, percent / 100) for percent in (50, 90, 95, 99)},
        },
        "loss_first": losses[0], "loss_last": losses[-1],
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }))


if __name__ == "__main__":
    main()
