#!/usr/bin/env bash
# Bessemer and its peers on BERT in pre-training in turn, a fresh process each, round after round.
#
#     compare_bert.sh [--quick] [--emulated-bf16] [--threads N] BESSEMER PYTHON OUT [ROUNDS]
#
# BESSEMER  the program
# PYTHON    an interpreter with the packages of pytorch/, jax/, onnxruntime/ and openvino/requirements.txt
# OUT       folder for results.jsonl (lines are appended), machine.json and summary.md
# ROUNDS    2 unless given
#
# --quick          one step each of one or two sequences of a small model, to see that everything runs; the figures mean
#                  nothing
# --emulated-bf16  runs all of them in bf16 on a processor without bf16 instructions too
# --threads N      for all of them; one for each processor unless given
#
# What fails or takes longer than its limit is a line with the reason, and is not tried in later rounds.
source "$(dirname "$0")/common/compare.sh"

model=bert-base default_rounds=2 emulates_bf16=
# mode, batch, precision, warm-up steps, timed steps, frameworks
items=(
  "train 16 fp32 2 4  bessemer pytorch pytorch+compile jax"
  "train 16 bf16 2 4  bessemer pytorch pytorch+compile jax"
  "infer 16 fp32 1 4  bessemer pytorch pytorch+compile onnxruntime openvino"
  "infer 1  fp32 3 20 bessemer pytorch pytorch+compile onnxruntime openvino"
  "infer 16 bf16 1 4  bessemer pytorch pytorch+compile openvino"
)

# The model and its sizes, for Bessemer and for its peers.
set_sizes() {
  model=bert-base sizes=()
  if [[ $quick ]]; then model=bert-tiny sizes=(--layers 2 --hidden 128); fi
}

set_command() { # FRAMEWORK MODE BATCH PRECISION WARMUP STEPS
  local common=(--batch-size "$3" --warmup "$5" --steps "$6" --precision "$4" --threads "$threads"
                --sequence-length 128 --predictions 20)
  set_sizes
  case $1 in
    bessemer) command=("$bessemer" bench "$2" "$model" --repeat 1 --quiet --json - "${common[@]}") ;;
    jax) command=("$python" "$here/jax/bert_pretrain.py" "$2" "${common[@]}" "${sizes[@]}") ;;
    pytorch*) command=("$python" "$here/pytorch/bert_pretrain.py" "$2" "${common[@]}" "${sizes[@]}")
              if [[ $1 == *+compile ]]; then command+=(--compile); fi ;;
    *) command=("$python" "$here/$1/bert_infer.py" "$2" "${common[@]}" "${sizes[@]}" --scratch "$scratch") ;;
  esac
}

# The first run in ONNX Runtime makes the file.
make_onnx() {
  set_command onnxruntime infer 1 fp32 0 1
  "${command[@]}" > /dev/null
}

compare "$@"
