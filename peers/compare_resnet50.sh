#!/usr/bin/env bash
# Bessemer and its peers on ResNet-50 in turn, a fresh process each, round after round.
#
#     compare_resnet50.sh [--quick] [--emulated-bf16] [--threads N] BESSEMER PYTHON OUT [ROUNDS]
#
# BESSEMER  the program
# PYTHON    an interpreter with the packages of pytorch/, onnxruntime/ and openvino/requirements.txt
# OUT       folder for results.jsonl (lines are appended), machine.json and summary.md
# ROUNDS    3 unless given
#
# --quick          one step each of one or two pictures, to see that everything runs; the figures mean nothing
# --emulated-bf16  runs the peers in bf16 on a processor without bf16 instructions too: a minute a step
# --threads N      for all of them; one for each processor unless given
#
# What fails or takes longer than its limit is a line with the reason, and is not tried in later rounds.
source "$(dirname "$0")/common/compare.sh"

model=resnet50 default_rounds=3 emulates_bf16=bessemer
# mode, batch, precision, warm-up steps, timed steps, frameworks
items=(
  "train 16 fp32 1 4  bessemer pytorch pytorch+compile"
  "train 16 bf16 1 4  bessemer pytorch pytorch+compile"
  "infer 16 fp32 2 8  bessemer pytorch pytorch+compile onnxruntime openvino"
  "infer 1  fp32 5 60 bessemer pytorch pytorch+compile onnxruntime openvino"
  "infer 16 bf16 2 8  bessemer pytorch pytorch+compile openvino"
)

set_command() { # FRAMEWORK MODE BATCH PRECISION WARMUP STEPS
  local common=(--batch-size "$3" --warmup "$5" --steps "$6" --precision "$4" --threads "$threads")
  case $1 in
    bessemer) command=("$bessemer" bench "$2" resnet50 --repeat 1 --quiet --json - "${common[@]}") ;;
    pytorch*) command=("$python" "$here/pytorch/bench_resnet50.py" "$2" "${common[@]}")
              if [[ $1 == *+compile ]]; then command+=(--compile); fi ;;
    *) command=("$python" "$here/$1/bench_resnet50.py" "$2" "${common[@]}" --scratch "$scratch") ;;
  esac
}

make_onnx() { "$python" "$here/common/onnx_resnet50.py" "$scratch/resnet50-seed0.onnx"; }

compare "$@"
