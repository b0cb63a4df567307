"""torchvision's ResNet-50 as an ONNX file, `images` f32 [batch, 3, 224, 224] to `logits` [batch, 1000].

    python onnx_resnet50.py OUT.onnx [--weights FILE] [--seed N]

The export runs in a process of its own, so that PyTorch does not count as memory of whoever runs the file.
"""

import argparse

import onnx_file


def add_arguments(parser):
    onnx_file.add_arguments(parser, "resnet50-onnx")


def file(args):
    """Path of the ONNX file for these weights; exported unless it is in the scratch folder."""
    return onnx_file.made(args, f"resnet50-{onnx_file.identity(args)}", __file__)


def export(path, weights, seed):
    import torch
    import torch_resnet50
    model = torch_resnet50.make(weights, seed).eval()
    torch.onnx.export(model, torch.zeros(1, 3, 224, 224), path, dynamo=False, input_names=["images"],
                      output_names=["logits"], dynamic_axes={"images": {0: "batch"}, "logits": {0: "batch"}})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--weights")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    export(args.out, args.weights, args.seed)


if __name__ == "__main__":
    main()
