"""BERT of `torch_bert.py` as an ONNX file, feeds i32 by name to `mlm_logits` [batch, P, V] and `nsp_logits` [batch, 2].

    python onnx_bert.py OUT.onnx [--seed N] [--weights FILE] [--sequence-length N] ...

The export runs in a process of its own, so that PyTorch does not count as memory of whoever runs the file.
"""

import argparse

import bert_work
import onnx_file

OUTPUTS = ["mlm_logits", "nsp_logits"]


def add_arguments(parser):
    onnx_file.add_arguments(parser, "bert-onnx")


def file(args):
    """Path of the ONNX file for these sizes and weights; exported unless it is in the scratch folder."""
    names = ("layers", "hidden", "vocabulary", "sequence_length", "predictions")
    sizes = [(name, getattr(args, name)) for name in names]
    words = [word for name, size in sizes for word in (f"--{name.replace('_', '-')}", str(size))]
    name = "-".join(["bert", *(str(size) for _, size in sizes), onnx_file.identity(args)])
    return onnx_file.made(args, name, __file__, words)


def export(args):
    import torch
    import torch_bert
    model = torch_bert.make(args).eval()
    words, predictions = (torch.zeros(2, size, dtype=torch.int32) for size in (args.sequence_length, args.predictions))
    torch.onnx.export(torch_bert.FromInt32(model), (words, words, words, predictions), args.out, dynamo=False,
                      input_names=bert_work.INPUTS, output_names=OUTPUTS, opset_version=20,
                      dynamic_axes={name: {0: "batch"} for name in bert_work.INPUTS + OUTPUTS})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, default=0)
    bert_work.add_arguments(parser)
    export(parser.parse_args())


if __name__ == "__main__":
    main()
