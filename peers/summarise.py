"""Turns results.jsonl of compare_resnet50.sh or compare_bert.sh into Markdown.

    python summarise.py results.jsonl > summary.md

Speeds are medians over rounds. A ratio is the median over rounds of Bessemer's speed over the peer's in the same round,
with the least and the largest: what slows a machine for a while slows both. The peak is the median of what all of
Bessemer's processes measured; every framework's share of it counts the FLOPs of the model, by Bessemer's count.
"""

import json
import statistics
import sys
import time
from collections import defaultdict

OURS = "bessemer"
NAMES = {"bessemer": "Bessemer", "pytorch": "PyTorch eager", "pytorch+compile": "PyTorch compiled",
         "jax": "JAX", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
TITLES = {"resnet50": ("ResNet-50", "compare_resnet50.sh"), "bert-base": ("BERT-base", "compare_bert.sh"),
          "bert-tiny": ("BERT-tiny", "compare_bert.sh --quick")}
QUIET = 0.05


class Work:
    """The measurements of one kind of work: {framework: {round: line}}, and the reasons of those that failed."""

    def __init__(self, mode, batch_size, precision):
        self.name = f"{'training' if mode == 'train' else 'inference'}, batch {batch_size}, {precision}"
        self.lines = defaultdict(dict)
        self.failures = {}

    def add(self, line):
        if "error" in line["options"]:
            self.failures[label(line)] = line["options"]["error"]
        else:
            self.lines[label(line)][line["round"]] = line

    def median(self, framework, of):
        values = [value for value in map(of, self.lines[framework].values()) if value is not None]
        return statistics.median(values) if values else None

    def speed(self, framework):
        return self.median(framework, lambda line: line["throughput"])

    def memory(self, framework):
        return self.median(framework, lambda line: line["peak_memory_bytes"])

    def import_memory(self, framework):
        return self.median(framework, lambda line: line.get("import_memory_bytes"))

    def flops(self):
        return self.median(OURS, lambda line: line["flops_per_sample"]) if OURS in self.lines else None

    def peers(self):
        """The fastest first."""
        return sorted((name for name in self.lines if name != OURS), key=self.speed, reverse=True)

    def ratios(self, peer):
        """Our speed over the peer's in each round that has both."""
        ours, theirs = self.lines.get(OURS, {}), self.lines[peer]
        return [ours[number]["throughput"] / theirs[number]["throughput"] for number in ours if number in theirs]


def label(line):
    return line["framework"] + ("+compile" if line["options"].get("compile") else "")


def read(path):
    with open(path) as lines:
        return [json.loads(line) for line in lines if line.strip()]


def works(lines):
    kinds = {}
    for line in lines:
        kind = (line["mode"], line["batch_size"], line["precision"])
        kinds.setdefault(kind, Work(*kind)).add(line)
    return list(kinds.values())


def measured_peak(lines):
    """FLOP/s in fp32, or None. A line tells it as the share that its speed has of it."""
    peaks = [line["flops_per_sample"] * line["throughput"] / line["fraction_of_peak"]
             for line in lines if line.get("fraction_of_peak") and line["precision"] == "fp32"]
    return statistics.median(peaks) if peaks else None


def table(head, rows):
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def span(values, form):
    """The median, with the least and the largest where there are several."""
    low, middle, high = (format(value, form) for value in (min(values), statistics.median(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low}-{high})"


def shown(value, form):
    return "" if value is None else format(value, form)


def ratio_rows(works):
    for work in works:
        peers = [peer for peer in work.peers() if work.ratios(peer)]
        if not peers:
            continue
        best = peers[0]
        memory = least_memory(work, peers)
        yield [work.name, f"{work.speed(OURS):.2f}", NAMES[best], f"{work.speed(best):.2f}",
               f"**{span(work.ratios(best), '.2f')}**", shown(memory, ".2f")]


def least_memory(work, peers):
    """Our peak memory over that of the peer with the least."""
    ours, theirs = work.memory(OURS), [work.memory(peer) for peer in peers if work.memory(peer)]
    return ours / min(theirs) if ours and theirs else None


def detail_rows(work, peak):
    ours = [OURS] if OURS in work.lines else []
    for framework in ours + work.peers():
        speeds = [line["throughput"] for line in work.lines[framework].values()]
        step = work.median(framework, lambda line: line["step_ms"]["p50"])
        share = work.speed(framework) * work.flops() / peak if peak and work.flops() else None
        memory, imported = work.memory(framework), work.import_memory(framework)
        ratios = work.ratios(framework) if framework != OURS else []
        memory_ratio = work.memory(OURS) / memory if ratios and memory and work.memory(OURS) else None
        yield [NAMES[framework], span(speeds, ".2f"), f"{step:.1f}", shown(share, ".0%"),
               span(ratios, ".2f") if ratios else "", shown(memory and memory / 1e9, ".2f"),
               shown(imported and imported / 1e9, ".2f"), shown(memory_ratio, ".2f")]


def versions(lines):
    """Each framework once, in the order in which they were run."""
    found = {line["framework"]: line["framework_version"] for line in lines if line["framework_version"]}
    return ", ".join(f"{NAMES[name].split(' eager')[0]} {version}" for name, version in found.items())


def dates(lines):
    days = sorted({time.strftime("%Y-%m-%d", time.gmtime(line["time"])) for line in lines})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def work_of_text(lines):
    """Sizes of the sequences and dropout, for models of text."""
    options = {}
    for line in lines:
        if line["mode"] == "train" or not options:
            options = line["options"] if "sequence_length" in line["options"] else options
    if not options:
        return ""
    clipped = ", gradients clipped" if options.get("clip") else ""
    trained = f"; dropout {options['dropout']:g}{clipped} in training" if "dropout" in options else ""
    return f" Sequences of {options['sequence_length']} tokens with {options['predictions']} to predict{trained}."


def disturbed(lines):
    """How many processes ran while others used the processors, and the largest share that these had."""
    shares = [line["others_busy"] for line in lines if line.get("others_busy", 0.0) > QUIET]
    if not shares:
        return "Nothing else ran."
    return (f"**Not a quiet machine:** during {len(shares)} of {len(lines)} measurements others used more than "
            f"{QUIET:.0%} of the processors, up to {max(shares):.0%}.")


def failure_rows(works):
    for work in works:
        for framework, reason in work.failures.items():
            yield [work.name, NAMES[framework], reason.replace("|", "\\|")]


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    lines = read(sys.argv[1])
    if not lines:
        raise SystemExit(f"{sys.argv[1]}: no measurements")
    kinds, peak = works(lines), measured_peak(lines)
    first = lines[0]
    title, script = TITLES[first["model"]]
    print(f"# {title} beside its peers\n")
    print(f"`peers/{script}`, {dates(lines)}, {first['device_name']}, {first['threads']} threads"
          + (f", {peak / 1e9:.0f} GFLOP/s in fp32 at most (measured)" if peak else "") + f". {versions(lines)}. "
          + disturbed(lines) + "\n")
    print(f"Speeds are {first['unit']}, medians over the rounds; in brackets the least and the largest. A ratio is "
          "Bessemer's speed over the peer's in the same round, and Bessemer's peak memory over the peer's."
          + work_of_text(lines) + "\n")
    best = list(ratio_rows(kinds))
    if best:
        print("## Beside the best peer\n")
        print(table(["work", "Bessemer", "best peer", "its speed", "ratio of speed", "ratio to least memory"], best))
    for work in kinds:
        rows = list(detail_rows(work, peak))
        if rows:
            print(f"## {work.name.capitalize()}\n")
            print(table(["framework", first["unit"], "step ms (p50)", "of the fp32 peak", "ratio of speed",
                         "peak memory GB", "after imports GB", "ratio of memory"], rows))
    failures = list(failure_rows(kinds))
    if failures:
        print("## Not measured\n")
        print(table(["work", "framework", "reason"], failures))
    print("Each framework starts from its own random weights and runs on one random batch held in memory: the work of "
          "a step is the same, the losses are not to be compared.")


if __name__ == "__main__":
    main()
