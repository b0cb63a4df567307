"""Checks that what is timed computes the same: one set of weights and one batch through every framework.

    python check_bert.py [--layers N] [--hidden N] [--batch-size N] [--threads N] ...

The loss of the first training step without dropout and the logits of both heads, in fp32, are compared with those of
Hugging Face's `BertForPreTraining` in float64. The batch has padding, and words that do not count.
`crates/train/examples/bert_parity.rs` compares Bessemer with the same model.

Allowed, in relative L2: 1e-4. The exit status is 1 if anything is further off.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "common"), str(HERE / "pytorch")]
import bert_reference as bert
import bert_work
import resnet_reference as reference
import run_once

ALLOWED = 1e-4
LIMIT_S = 600
CHECKS = [  # name, script, mode, options
    ("PyTorch eager", "pytorch/bert_pretrain.py", "train", ["--dropout", "0"]),
    ("PyTorch compiled", "pytorch/bert_pretrain.py", "train", ["--dropout", "0", "--compile"]),
    ("JAX", "jax/bert_pretrain.py", "train", ["--dropout", "0"]),
    ("PyTorch eager", "pytorch/bert_pretrain.py", "infer", []),
    ("PyTorch compiled", "pytorch/bert_pretrain.py", "infer", ["--compile"]),
    ("ONNX Runtime", "onnxruntime/bert_infer.py", "infer", []),
    ("OpenVINO", "openvino/bert_infer.py", "infer", []),
]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--predictions", type=int, default=20)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=30_522)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_model(args):
    return bert.make_model(
        vocab_size=args.vocabulary, hidden_size=args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // bert_work.HEAD_WIDTH, intermediate_size=4 * args.hidden,
        hidden_act="gelu_pytorch_tanh",
    )


@torch.no_grad()
def spread(model):
    """Weights so large that scores and logits spread over a unit, and norms and biases that all count."""
    for name, parameter in model.named_parameters():
        centre = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        deviation = 0.1 if parameter.ndim == 1 else parameter.shape[1] ** -0.5
        parameter.copy_(centre + deviation * torch.randn(parameter.shape))


@torch.inference_mode()
def expected(model, feeds):
    """Loss f64 [], and logits of the words to predict [B, P, V] and of the sentences [B, 2]."""
    model = model.double().eval()
    output = model(input_ids=feeds["input_ids"], attention_mask=feeds["input_mask"],
                   token_type_ids=feeds["segment_ids"])
    rows = torch.arange(len(feeds["input_ids"]))[:, None]
    words = output.prediction_logits[rows, feeds["masked_lm_positions"]]
    return {"loss": bert.losses(model, feeds)[0], "mlm_logits": words, "nsp_logits": output.seq_relationship_logits}


def check(name, script, mode, options, given, scratch, truth):
    """Whether all values of one run are near enough."""
    outputs = scratch / "outputs.safetensors"
    if script.split("/")[0] in ("onnxruntime", "openvino"):
        options = [*options, "--scratch", scratch]
    command = [sys.executable, HERE / script, mode, *given, *options, "--outputs", outputs]
    output, failure = run_once.run([str(word) for word in command], LIMIT_S)
    if failure:
        print(f"{name:18} {mode}: failed: {failure}")
        return False
    if mode == "train":
        values = {"loss": torch.tensor(json.loads(output.splitlines()[-1])["loss_first"])}
    else:
        values = load_file(outputs)
    return all([near(name, what, value, truth[what]) for what, value in values.items()])


def near(name, what, value, truth):
    distance = reference.relative_l2(value, truth)
    good = distance <= ALLOWED
    print(f"{name:18} {what:12} {distance:9.2e} of {ALLOWED:.0e} allowed  {'ok' if good else 'TOO FAR'}")
    return good


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    given = ["--steps", "1", "--warmup", "0"]
    for name, value in vars(args).items():
        given += [f"--{name.replace('_', '-')}", value]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        model = make_model(args)
        spread(model)
        generator = torch.Generator().manual_seed(args.seed)
        feeds = bert.make_batch(model.config, args.batch_size, args.sequence_length, args.predictions, generator)
        weights, batches = scratch / "weights.safetensors", scratch / "feeds.safetensors"
        reference.write_tensors(weights, dict(model.named_parameters()))
        reference.write_tensors(batches, bert.stored_feeds(feeds))
        given += ["--weights", weights, "--batches", batches]
        truth = expected(model, feeds)
        good = [check(*run, given, scratch, truth) for run in CHECKS]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
