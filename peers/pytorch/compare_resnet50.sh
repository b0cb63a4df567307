#!/usr/bin/env bash
# Bessemer and PyTorch eager on ResNet-50 in turn, a fresh process each, on an otherwise idle machine.
#     compare_resnet50.sh PYTHON BESSEMER [ROUNDS] > results.jsonl
# PYTHON has the packages of requirements.txt. One JSON line a measurement; the names of the fields that both share are
# `framework`, `mode`, `batch_size`, `throughput`, `loss_first`, `loss_last`.
set -euo pipefail
python=$1 bessemer=$2 rounds=${3:-2}
here=$(cd "$(dirname "$0")" && pwd)
for _ in $(seq "$rounds"); do
  for case in "train 16 5" "infer 16 10" "infer 1 40"; do
    read -r mode batch steps <<< "$case"
    "$bessemer" bench "$mode" resnet50 --batch-size "$batch" --warmup 2 --steps "$steps" --repeat 1 --quiet --json -
    "$python" "$here/bench_resnet.py" "$mode" "$batch" "$steps" 2
  done
done
