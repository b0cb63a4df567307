"""Times BERT in pre-training on one batch held in memory and prints one JSON line.

    python bert_pretrain.py train|infer [--batch-size N] [--compile] [--precision fp32|bf16] [--weights FILE] ...

A training step is everything a user waits for: clearing gradients, forward, both losses, backward, clipping by the
global norm, AdamW. Inference is the encoder and both heads.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
import bert_work
import measuring
import torch_bert


def parse_arguments():
    parser = measuring.parser(__doc__, modes=["train", "infer"], precisions=["fp32", "bf16"])
    bert_work.add_arguments(parser)
    bert_work.add_training_arguments(parser)
    parser.add_argument("--compile", action="store_true", help="torch.compile; for inference with frozen weights")
    return parser.parse_args()


def make_adamw(model, args):
    groups = [
        {"params": [p for n, p in model.named_parameters() if bert_work.is_decayed(n) == is_decayed],
         "weight_decay": decay}
        for is_decayed, decay in [(True, bert_work.WEIGHT_DECAY), (False, 0.0)]
    ]
    return torch.optim.AdamW(groups, lr=args.lr, fused=True, **bert_work.ADAMW)


def make_train_step(args):
    model = torch_bert.make(args, args.dropout).train()
    parameters = list(model.parameters())
    optimizer = make_adamw(model, args)

    def forward(inputs, targets):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            return torch_bert.loss(model(*inputs), targets)

    run = torch.compile(forward) if args.compile else forward

    def step(inputs, targets):
        optimizer.zero_grad(set_to_none=True)
        loss = run(inputs, targets)
        loss.backward()
        if not args.no_clip:
            torch.nn.utils.clip_grad_norm_(parameters, bert_work.CLIP_NORM)
        optimizer.step()
        return loss.item()

    return step


def make_infer_step(args):
    """In bf16 the weights are cast once, and nothing is left in float32."""
    model = torch_bert.make(args).eval()
    if args.precision == "bf16":
        model.to(torch.bfloat16)
    if args.compile:
        torch._inductor.config.freezing = True
    run = torch.compile(model) if args.compile else model

    @torch.inference_mode()
    def step(inputs, _):
        return run(*inputs)

    return step


def main():
    import_memory = measuring.resident_bytes()
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    feeds = bert_work.feeds(args)
    step = make_train_step(args) if args.mode == "train" else make_infer_step(args)
    timing = measuring.run(step, [(torch_bert.inputs(feeds), torch_bert.targets(feeds))], args)
    if args.outputs and args.mode == "infer":
        words, following = (logits.float().numpy() for logits in timing.results[-1])
        measuring.write_outputs(args.outputs, mlm_logits=words, nsp_logits=following)
    options = bert_work.options(args, compile=args.compile)
    if args.compile:
        options |= {name: getattr(torch._inductor.config, name) for name in ("freezing", "max_autotune")}
    measuring.print_event(args, bert_work.model_name(args), timing, "pytorch", torch.__version__, options,
                          import_memory)


if __name__ == "__main__":
    main()
