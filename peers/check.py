"""Checks that every peer computes the same: one set of weights and batches through each, compared with float64.

    python check.py [PEER[+VARIANT][=PROGRAM] ...] [--model NAME ...] [--full] [--threads N] [--precision fp32|bf16] [--time]

PEER is a folder here; PROGRAM the interpreter with its packages, the one that runs this unless given, or of a peer in Rust what Cargo
made of it, `target/release/adapter` in its folder unless given. This interpreter needs the packages of `pytorch/requirements.txt`. Without
peers, all that it can import and that are built. Models are small, and the real ones with `--full`.

The truth is torchvision's and Hugging Face's model in float64: losses of four training steps without dropout, and outputs of
inference. Allowed, as relative L2: 1e-4 in fp32 for outputs and losses, 0.05 in bf16. `--time` runs the timed purpose, too, and
looks whether its answer is whole. The exit status is 1 if anything is further off or fails.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "common")]
import make_work
from peer import safetensors, torch_resnet
from peer.work import FAMILIES, OUTPUTS, Work, family_of

ALLOWED = {"fp32": 1e-4, "bf16": 0.05}
SMALL = ["resnet50-small", "bert-tiny", "electra-mini-squad"]
FULL = ["resnet50", "bert-base", "electra-base-squad"]
STEPS = 4
LIMIT_S = 1200
CANNOT = 3
PEERS = ["pytorch", "tensorflow", "jax", "paddle", "mxnet", "oneflow", "onnxruntime", "openvino", "candle", "burn"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", default=PEERS)
    parser.add_argument("--model", action="append", choices=SMALL + FULL)
    parser.add_argument("--mode", choices=["train", "infer"])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--precision", choices=list(ALLOWED), default="fp32")
    parser.add_argument("--time", action="store_true")
    return parser.parse_args()


class Truth:
    """The work in float64: `losses` f64 [STEPS], or `outputs` by name."""

    def __init__(self, folder):
        self.work = Work(folder, is_dropped=False)
        self.model = self.make_model().double()
        self.batches = [self.batch(index) for index in range(self.work.batches)]

    def make_model(self):
        if self.work.family == "resnet":
            return torch_resnet.make(self.work)
        from transformers import BertConfig, BertForPreTraining, ElectraConfig, ElectraForQuestionAnswering
        kinds = {"bert": (BertConfig, BertForPreTraining), "electra": (ElectraConfig, ElectraForQuestionAnswering)}
        configuration, model = kinds[self.work.family]
        config = configuration(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **vars(self.work.sizes))
        config._attn_implementation = "eager"
        model = model(config)
        weights = {name: torch.from_numpy(array.copy()) for name, array in self.work.weights.items()}
        wrong = model.load_state_dict(weights, strict=False)
        tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
        assert not wrong.unexpected_keys and set(wrong.missing_keys) <= tied, wrong
        model.tie_weights()
        return model

    def batch(self, index):
        arrays = {name: torch.from_numpy(array) for name, array in self.work.named_feeds()[index].items()}
        if self.work.family == "resnet":
            mean, std = (torch.tensor(self.work.normalise[name], dtype=torch.float64) for name in ("mean", "std"))
            return {"images": ((arrays["images"].double() - mean) / std).permute(0, 3, 1, 2), "labels": arrays["labels"].long()}
        return {name: x.double() if x.is_floating_point() else x.long() for name, x in arrays.items()}

    def forward(self, batch):
        if self.work.family == "resnet":
            return (self.model(batch["images"]),)
        output = self.model(input_ids=batch["input_ids"], attention_mask=batch["input_mask"], token_type_ids=batch["segment_ids"])
        if self.work.family == "electra":
            return output.start_logits, output.end_logits
        rows = torch.arange(len(batch["input_ids"]))[:, None]
        return output.prediction_logits[rows, batch["masked_lm_positions"]], output.seq_relationship_logits

    def outputs(self):
        self.model.eval()
        with torch.inference_mode():
            batches = [self.forward(batch) for batch in self.batches]
        return {name: torch.stack(parts).numpy() for name, parts in zip(OUTPUTS[self.work.family], zip(*batches))}

    def loss(self, batch):
        cross_entropy, logits = torch.nn.functional.cross_entropy, self.forward(batch)
        if self.work.family == "resnet":
            return cross_entropy(logits[0], batch["labels"], label_smoothing=self.work.training.label_smoothing)
        first, second = logits
        if self.work.family == "electra":
            return (cross_entropy(first, batch["start_positions"]) + cross_entropy(second, batch["end_positions"])) / 2
        weights = batch["masked_lm_weights"].flatten()
        by_word = cross_entropy(first.flatten(0, 1), batch["masked_lm_ids"].flatten(), reduction="none")
        return (by_word * weights).sum() / weights.sum() + cross_entropy(second, batch["next_sentence_labels"])

    def losses(self):
        self.model.train()
        parameters, state, losses = dict(self.model.named_parameters()), {}, []
        for step in range(STEPS):
            loss = self.loss(self.batches[step % len(self.batches)])
            gradients = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values()))))
            if self.work.training.clip_norm:
                norm = math.sqrt(sum(g.square().sum().item() for g in gradients.values()))
                gradients = {name: g * min(1.0, self.work.training.clip_norm / norm) for name, g in gradients.items()}
            with torch.no_grad():
                for name, weight in parameters.items():
                    self.update(name, weight, gradients[name], state, step + 1)
            losses.append(loss.item())
        return np.array(losses)

    def update(self, name, weight, gradient, state, count):
        training, decay = self.work.training, self.work.decay(name)
        if training.optimizer == "sgd":
            velocity = training.momentum * state.get(name, 0) + gradient + decay * weight
            state[name] = velocity
            weight -= training.lr * velocity
            return
        beta1, beta2 = training.betas
        first, second = state.get(name, (0, 0))
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient.square()
        state[name] = first, second
        of_first, of_second = (1 - beta1**count, 1 - beta2**count) if training.bias_correction else (1, 1)
        direction = first / of_first / ((second / of_second).sqrt() + training.eps)
        weight -= training.lr * (direction + decay * weight)


class Peer:
    """A folder and its program, given as `NAME[+VARIANT][=PROGRAM]`."""

    def __init__(self, text):
        text, _, program = text.partition("=")
        self.name, _, self.variant = text.partition("+")
        adapter = HERE / self.name / "adapter.py"
        if adapter.is_file():
            self.command = [program or sys.executable, str(adapter)]
        else:
            self.command = [program or str(HERE / self.name / "target/release/adapter")]

    def call(self, *words):
        """The answer, or `RuntimeError` with the exit status and the reason."""
        try:
            done = subprocess.run([*self.command, *map(str, words)], capture_output=True, text=True, timeout=LIMIT_S)
        except FileNotFoundError as missing:
            raise RuntimeError(CANNOT, str(missing)) from missing
        answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not answers:
            lines = done.stderr.strip().splitlines() or ["no answer"]
            raise RuntimeError(done.returncode, next((line for line in lines if line.startswith("error:")), lines[-1]))
        answer = json.loads(answers[-1])
        if answer.get("protocol") != 1:
            raise RuntimeError(0, f"protocol is {answer.get('protocol')}")
        return answer


def request(args, model, mode, variant, purpose, work, cache, outputs):
    return {"protocol": 1, "variant": variant, "model": model, "mode": mode, "batch_size": args.batch_size,
            "precision": args.precision, "threads": args.threads, "warmup": 0 if purpose == "check" else 1, "steps": STEPS,
            "seed": 0, "purpose": purpose, "work": str(work), "cache": str(cache), "outputs": outputs and str(outputs)}


def relative_l2(value, truth):
    value, truth = np.asarray(value, np.float64), np.asarray(truth, np.float64)
    if value.shape != truth.shape:
        return math.inf
    return float(np.linalg.norm(value - truth) / np.linalg.norm(truth))


def check(peer, variant, args, model, mode, truth, folder, cache):
    """Whether one variant of a peer is near enough to `truth`, by name."""
    what = f"{peer.name + '+' + variant:22} {model:20} {mode:5}"
    outputs, words = folder / "outputs.safetensors", folder / "request.json"
    outputs.unlink(missing_ok=True)
    try:
        for command, purpose in [("prepare", "check"), ("run", "check")] + [("prepare", "time"), ("run", "time")] * args.time:
            asked = request(args, model, mode, variant, purpose, folder, cache, outputs if purpose == "check" else None)
            words.write_text(json.dumps(asked))
            answer = peer.call(command, words)
            if command == "run" and purpose == "check":
                values = {"losses": answer["losses"]} if mode == "train" else safetensors.load(outputs)
    except RuntimeError as failure:
        status, reason = failure.args
        print(f"{what} {'cannot' if status == CANNOT else f'FAILED with {status}'}: {reason[:200]}", flush=True)
        return status == CANNOT
    distances = {name: relative_l2(values[name], value) for name, value in truth.items()}
    wrong = [] if not args.time else incomplete(answer, mode)
    good = not wrong and all(distance <= ALLOWED[args.precision] for distance in distances.values())
    shown = ", ".join(f"{name} {distance:.1e}" for name, distance in distances.items())
    times = f", {min(answer['step_ms']):.0f} ms, {answer['peak_memory_bytes'] / 1e9:.2f} GB" if args.time else ""
    print(f"{what} {shown}{times}  {'ok' if good else 'WRONG ' + ', '.join(wrong)}", flush=True)
    return good


def incomplete(answer, mode):
    """What is amiss in the answer of a timed run."""
    known = {"step_ms": len(answer["step_ms"]) == STEPS, "window_s": answer["window_s"] * 1000 >= 0.99 * sum(answer["step_ms"]),
             "memory": answer["peak_memory_bytes"] >= answer["import_memory_bytes"] > 0,
             "losses": mode == "infer" or (len(answer["losses"]) == STEPS + 1 and all(map(math.isfinite, answer["losses"])))}
    return [name for name, is_good in known.items() if not is_good]


def describe_all(texts):
    """Peers with their descriptions."""
    for peer in map(Peer, texts):
        try:
            yield peer, peer.call("describe")
        except RuntimeError as failure:
            print(f"{peer.name}: not checked: {failure.args[1]}", flush=True)


def offers(described, model, mode, precision):
    return any((work["model"], work["mode"]) == (FAMILIES[family_of(model)], mode) and precision in work["precisions"] + work["emulated"]
               for work in described["work"])


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    peers, good = list(describe_all(args.peers)), []
    with tempfile.TemporaryDirectory() as scratch:
        for model in args.model or (FULL if args.full else SMALL):
            for mode in [args.mode] if args.mode else ["train", "infer"]:
                folder = Path(scratch) / f"{model}-{mode}"
                make_work.write(folder, model, mode, args.batch_size)
                truth = Truth(folder)
                truth = {"losses": truth.losses()} if mode == "train" else truth.outputs()
                for peer, described in peers:
                    if not offers(described, model, mode, args.precision):
                        continue
                    for variant in (v["name"] for v in described["variants"] if peer.variant in ("", v["name"])):
                        cache = Path(scratch) / "cache" / peer.name
                        good.append(check(peer, variant, args, model, mode, truth, folder, cache))
    sys.exit(0 if good and all(good) else 1)


if __name__ == "__main__":
    main()
