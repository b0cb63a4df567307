"""Turns the lines of compare_resnet50.sh into a Markdown table.

    python summarise.py results.jsonl MACHINE DATE > report.md
"""

import json
import statistics
import sys

path, machine, date = sys.argv[1:4]
with open(path) as lines:
    results = [json.loads(line) for line in lines]
frameworks = {r["framework"]: r["framework_version"] for r in results}
print("# ResNet-50, fp32, beside PyTorch eager\n")
print(f"`peers/pytorch/compare_resnet50.sh`, {date}, {machine}; medians over the runs in the brackets, images/s.")
print("Versions: " + ", ".join(f"{name} {version}" for name, version in frameworks.items()) + ".\n")
print("| mode | batch | Bessemer | PyTorch | ratio | of the FMA peak | memory, ours / theirs |")
print("|---|---|---|---|---|---|---|")
for mode, batch in dict.fromkeys((r["mode"], r["batch_size"]) for r in results):
    of = {f: [r for r in results if (r["framework"], r["mode"], r["batch_size"]) == (f, mode, batch)] for f in frameworks}
    ours, theirs = of["bessemer"], of["pytorch"]
    if not ours or not theirs:
        continue
    rate = {f: statistics.median(r["throughput"] for r in runs) for f, runs in of.items()}
    shown = {f: f"{rate[f]:.2f} ({', '.join(format(r['throughput'], '.2f') for r in runs)})" for f, runs in of.items()}
    peak = statistics.median(r["fraction_of_peak"] for r in ours)
    memory = [max(r["peak_memory_bytes"] for r in runs) / 1e9 for runs in (ours, theirs)]
    print(f"| {mode} | {batch} | {shown['bessemer']} | {shown['pytorch']} | {rate['bessemer'] / rate['pytorch']:.2f} "
          f"| {peak:.0%} | {memory[0]:.2f} / {memory[1]:.2f} GB |")
print("\nEach started from its own random weights: the losses are not comparable, only the work per step is.")
