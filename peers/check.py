"""Checks that every peer computes the same: one set of weights and batches through each, compared with float64.

    python check.py [PEER[+VARIANT][=PROGRAM] ...] [--model NAME ...] [--full] [--threads N] [--precision fp32|bf16] [--time]

PEER is a folder here; PROGRAM the interpreter with its packages, the one that runs this unless given, or of a peer in Rust what Cargo
made of it, `target/release/adapter` in its folder unless given. This interpreter needs the packages of `pytorch/requirements.txt`. Without
peers, all that it can import and that are built. Models are small, and the real ones with `--full`.

The truth is torchvision's, Hugging Face's and effdet's model in float64: losses of four training steps without dropout, and outputs of
inference. Allowed, as relative L2: 1e-4 in fp32 for outputs and losses, 0.05 in bf16. Detections are compared as sets: their sorted scores
as outputs are, and of 100 no more than 2 in fp32 and 60 in bf16 may have no partner of the same class whose box and score are near. `--time` runs the timed purpose, too, and
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
from peer.work import DETECTIONS, FAMILIES, NETWORK, Work, channels_behind, family_of

ALLOWED = {"fp32": 1e-4, "bf16": 0.05}
# Of detections: the share without a partner, and the least IoU of partners.
ALONE = {"fp32": 0.02, "bf16": 0.6}
OVERLAP = {"fp32": 0.99, "bf16": 0.5}
SMALL = ["resnet50-small", "bert-tiny", "electra-mini-squad", "efficientdet-small"]
FULL = ["resnet50", "bert-base", "electra-base-squad", "efficientdet-d0"]
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
        if self.work.family == "efficientdet":
            from peer import torch_efficientdet
            self.detector = torch_efficientdet
            return torch_efficientdet.make(self.work)
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
        if self.work.family == "efficientdet":
            images = torch.from_numpy(self.work.images()[index]).double().permute(0, 3, 1, 2)
            boxes, classes = self.detector.objects(self.work)[index]
            info = self.detector.image_infos(self.work, images.device)[index]
            return {"images": images, "objects": (boxes.double(), classes), "info": info}
        arrays = {name: torch.from_numpy(array) for name, array in self.work.named_feeds()[index].items()}
        if self.work.family == "resnet":
            mean, std = (torch.tensor(self.work.normalise[name], dtype=torch.float64) for name in ("mean", "std"))
            return {"images": ((arrays["images"].double() - mean) / std).permute(0, 3, 1, 2), "labels": arrays["labels"].long()}
        return {name: x.double() if x.is_floating_point() else x.long() for name, x in arrays.items()}

    def forward(self, batch):
        if self.work.family in ("resnet", "efficientdet"):
            outputs = self.model(batch["images"])
            return (outputs,) if self.work.family == "resnet" else outputs
        output = self.model(input_ids=batch["input_ids"], attention_mask=batch["input_mask"], token_type_ids=batch["segment_ids"])
        if self.work.family == "electra":
            return output.start_logits, output.end_logits
        rows = torch.arange(len(batch["input_ids"]))[:, None]
        return output.prediction_logits[rows, batch["masked_lm_positions"]], output.seq_relationship_logits

    def outputs(self):
        self.model.eval()
        with torch.inference_mode():
            batches = [self.named_outputs(batch) for batch in self.batches]
        return {name: np.stack([outputs[name] for outputs in batches]) for name in batches[0]}

    def named_outputs(self, batch):
        if self.work.ends_with() == DETECTIONS:
            detect = self.detector.detector(self.work, self.model, self.model)
            return self.detector.named(detect(batch["images"], batch["info"]))
        outputs = self.forward(batch)
        if self.work.family == "efficientdet":
            outputs = [level for part in outputs for level in part]
        return channels_behind({name: x.numpy() for name, x in zip(self.work.output_names(), outputs)})

    def loss(self, batch):
        cross_entropy, logits = torch.nn.functional.cross_entropy, self.forward(batch)
        if self.work.family == "resnet":
            return cross_entropy(logits[0], batch["labels"], label_smoothing=self.work.training.label_smoothing)
        if self.work.family == "efficientdet":
            with self.detector.float64():
                loss = self.detector.loss(self.work, logits, self.detector.matcher(self.model)(batch["objects"]))
            kernels = (parameter for parameter in self.model.parameters() if parameter.ndim > 1)
            return loss + self.work.training.loss["l2"] / 2 * sum(kernel.square().sum() for kernel in kernels)
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


def detection_distances(found, truth, precision):
    """Relative L2 of the sorted scores, and the share of detections that have no partner; infinite where shapes differ."""
    if any(found[name].shape != array.shape for name, array in truth.items()):
        return math.inf, 1.0
    scores, alone, most = [], 0, 0
    for image in np.ndindex(truth["count"].shape):
        ours, theirs = ([(side["labels"][image][k], side["scores"][image][k], side["boxes"][image][k])
                         for k in range(int(side["count"][image]))] for side in (truth, found))
        scores.append([np.sort(side["scores"][image])[::-1] for side in (found, truth)])
        larger = max(len(ours), len(theirs))
        for wanted in ours:
            partner = next((k for k, other in enumerate(theirs) if is_partner(wanted, other, precision)), None)
            larger -= partner is not None
            if partner is not None:
                theirs.pop(partner)
        alone, most = alone + larger, most + max(int(truth["count"][image]), int(found["count"][image]))
    return relative_l2(*(np.stack(side) for side in zip(*scores))), alone / max(most, 1) if most else 1.0


def is_partner(a, b, precision):
    (label, score, box), (other_label, other_score, other_box) = a, b
    low, high = np.maximum(box[:2], other_box[:2]), np.minimum(box[2:], other_box[2:])
    common = np.prod(np.maximum(high - low, 0))
    union = np.prod(box[2:] - box[:2]) + np.prod(other_box[2:] - other_box[:2]) - common
    return label == other_label and abs(score - other_score) <= 10 * ALLOWED[precision] * score and common >= OVERLAP[precision] * union


def check(peer, variant, args, model, mode, truth, folder, cache, ending=""):
    """Whether one variant of a peer is near enough to `truth`, by name."""
    what = f"{peer.name + '+' + variant:22} {model:20} {mode + ' ' + ending if ending else mode:16}"
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
    allowed = dict.fromkeys(truth, ALLOWED[args.precision])
    if ending == DETECTIONS:
        scores, alone = detection_distances(values, truth, args.precision)
        distances, allowed["alone"] = {"scores": scores, "alone": alone}, ALONE[args.precision]
    else:
        distances = {name: relative_l2(values[name], value) for name, value in truth.items()}
    wrong = [] if not args.time else incomplete(answer, mode)
    good = not wrong and all(distance <= allowed[name] for name, distance in distances.items())
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


def offers(described, model, mode, precision, ending):
    return any((work["model"], work["mode"]) == (FAMILIES[family_of(model)], mode) and precision in work["precisions"] + work["emulated"]
               and (not ending or ending in work["outputs"]) for work in described["work"])


def endings(model, mode):
    """What the inference of a detector ends with; of others there is one kind."""
    return [DETECTIONS, NETWORK] if family_of(model) == "efficientdet" and mode == "infer" else [""]


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    peers, good = list(describe_all(args.peers)), []
    with tempfile.TemporaryDirectory() as scratch:
        wanted = [(model, mode, ending) for model in args.model or (FULL if args.full else SMALL)
                  for mode in ([args.mode] if args.mode else ["train", "infer"]) for ending in endings(model, mode)]
        for model, mode, ending in wanted:
            folder = Path(scratch) / f"{model}-{mode}{ending}"
            make_work.write(folder, model, mode, args.batch_size, is_network=ending == NETWORK)
            truth = Truth(folder)
            truth = {"losses": truth.losses()} if mode == "train" else truth.outputs()
            for peer, described in peers:
                if not offers(described, model, mode, args.precision, ending):
                    continue
                for variant in (v["name"] for v in described["variants"] if peer.variant in ("", v["name"])):
                    cache = Path(scratch) / "cache" / peer.name
                    good.append(check(peer, variant, args, model, mode, truth, folder, cache, ending))
    sys.exit(0 if good and all(good) else 1)


if __name__ == "__main__":
    main()
