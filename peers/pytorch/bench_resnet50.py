"""Times torchvision's ResNet-50 on batches held in memory and prints one JSON line.

    python bench_resnet50.py train|infer [--batch-size N] [--compile] [--precision fp32|bf16] [--weights FILE] ...

A training step is everything a user waits for: clearing gradients, forward, label-smoothed loss, backward, SGD with
momentum.
"""

import sys
from pathlib import Path

import torch

import resnet_reference as reference

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
import measuring
import resnet_work
import torch_resnet50


def parse_arguments():
    parser = measuring.parser(__doc__, modes=["train", "infer"], precisions=["fp32", "bf16"])
    resnet_work.add_arguments(parser)
    parser.add_argument("--compile", action="store_true", help="torch.compile; for inference with frozen weights")
    parser.add_argument("--lr", type=float, default=0.001)
    return parser.parse_args()


def autocast(args):
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16")


def make_train_step(model, args):
    model.train()
    optimizer = reference.make_sgd(model, args.lr, fused=True)
    run = torch.compile(model) if args.compile else model

    def step(images, labels):
        optimizer.zero_grad(set_to_none=True)
        with autocast(args):
            logits = run(images)
        loss = reference.smoothed_loss(logits.float(), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def make_infer_step(model, args):
    model.eval()
    if args.precision == "bf16":
        cast_weights(model)
    if args.compile:
        torch._inductor.config.freezing = True
    run = torch.compile(model) if args.compile else model

    @torch.inference_mode()
    def step(images, _):
        with autocast(args):
            return run(images)

    return step


def cast_weights(model):
    """To bfloat16 what autocast would cast in every step; batch norms stay in float32, as they do under autocast."""
    for module in model.modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            module.to(torch.bfloat16)


def main():
    import_memory = measuring.resident_bytes()
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    model = torch_resnet50.make(args.weights, args.seed).to(memory_format=torch.channels_last)
    batches = [(torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels))
               for images, labels in resnet_work.batches(args)]
    step = make_train_step(model, args) if args.mode == "train" else make_infer_step(model, args)
    timing = measuring.run(step, batches, args)
    if args.outputs:
        measuring.write_outputs(args.outputs, logits=timing.results[-1].float().numpy())
    options = {"compile": args.compile, "channels_last": True}
    if args.compile:
        options |= {name: getattr(torch._inductor.config, name) for name in ("freezing", "max_autotune")}
    measuring.print_event(args, resnet_work.MODEL, timing, "pytorch", torch.__version__, options, import_memory)


if __name__ == "__main__":
    main()
