"""The work on ResNet-50: its arguments and batches."""

import numpy as np

MODEL = "resnet50"
SIZE = 224
CLASSES = 1000


def add_arguments(parser):
    parser.add_argument("--weights", help="safetensors with torchvision's names (default: seeded random)")
    parser.add_argument("--batches",
                        help="safetensors with `images` f32 [K, N, H, W, 3], normalised, and `labels` i32 [K, N]")


def batches(args):
    """Pairs of images f32 [N, H, W, 3] and labels i64 [N]: those of `--batches`, or a seeded one."""
    if args.batches:
        from safetensors.numpy import load_file
        tensors = load_file(args.batches)
        if tensors["images"].shape[1] != args.batch_size:
            raise SystemExit(f"{args.batches}: batches of {tensors['images'].shape[1]}, "
                             f"but --batch-size is {args.batch_size}")
        return list(zip(tensors["images"], tensors["labels"].astype(np.int64)))
    random = np.random.default_rng(args.seed)
    images = random.standard_normal((args.batch_size, SIZE, SIZE, 3), dtype=np.float32)
    return [(images, random.integers(0, CLASSES, args.batch_size))]


def to_nchw(images):
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
