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
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
threads=$(nproc) quick= emulated= limit=240 patience=60
while [[ ${1:-} == --* ]]; do
  case $1 in
    --quick) quick=yes patience=0 ;;
    --emulated-bf16) emulated=yes limit=900 ;;
    --threads) threads=$2; shift ;;
    *) echo "$1: no such option; see the head of $0" >&2; exit 2 ;;
  esac
  shift
done
if (($# < 3 || $# > 4)); then
  sed -n '2,/^set/{/^#/s/^# \?//p}' "$0" >&2
  exit 2
fi
bessemer=$1 python=$2 out=$3 rounds=${4:-3}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TORCHINDUCTOR_CACHE_DIR=$scratch/inductor
mkdir -p "$out"

# mode, batch, precision, warm-up steps, timed steps, frameworks
items=(
  "train 16 fp32 1 4  bessemer pytorch pytorch+compile"
  "train 16 bf16 1 4  bessemer pytorch pytorch+compile"
  "infer 16 fp32 2 8  bessemer pytorch pytorch+compile onnxruntime openvino"
  "infer 1  fp32 5 60 bessemer pytorch pytorch+compile onnxruntime openvino"
  "infer 16 bf16 2 8  bessemer pytorch pytorch+compile openvino"
)

has_bf16() { grep -qw -e avx512_bf16 -e bf16 /proc/cpuinfo; }

is_left_out() { # FRAMEWORK PRECISION
  [[ $1 != bessemer && $2 == bf16 && -z $emulated ]] && ! has_bf16
}

set_command() { # FRAMEWORK MODE BATCH PRECISION WARMUP STEPS
  local counts=("$3" "$6" "$5") common=(--precision "$4" --threads "$threads")
  case $1 in
    bessemer) command=("$bessemer" bench "$2" resnet50 --batch-size "$3" --warmup "$5" --steps "$6" --repeat 1
                       --quiet --json - "${common[@]}") ;;
    pytorch*) command=("$python" "$here/pytorch/bench_resnet50.py" "$2" "${counts[@]}" "${common[@]}")
              if [[ $1 == *+compile ]]; then command+=(--compile); fi ;;
    *) command=("$python" "$here/$1/bench_resnet50.py" "$2" "${counts[@]}" "${common[@]}" --scratch "$scratch") ;;
  esac
}

minutes() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# One line for each measurement of a round: FRAMEWORK MODE BATCH PRECISION WARMUP STEPS
runs=()
for item in "${items[@]}"; do
  read -r mode batch precision warmup steps frameworks <<< "$item"
  for framework in $frameworks; do
    if is_left_out "$framework" "$precision"; then
      echo "left out: $framework $mode $precision (the processor has no bf16; see --emulated-bf16)"
    else
      [[ $quick ]] && batch=$((batch > 2 ? 2 : batch)) warmup=1 steps=1
      runs+=("$framework $mode $batch $precision $warmup $steps")
    fi
  done
done

echo "making the ONNX file and looking at the machine"
"$python" "$here/common/onnx_resnet50.py" "$scratch/resnet50-seed0.onnx" 2> "$scratch/log" || cat "$scratch/log" >&2
"$bessemer" doctor --json --threads "$threads" > "$out/machine.json"

# Compiled code stays in the cache: no measured process calls the C++ compiler, nor has it workers beside it.
for run in "${runs[@]}"; do
  read -r framework mode batch precision _ <<< "$run"
  [[ $framework == pytorch+compile ]] || continue
  echo "compiling $mode b$batch $precision"
  set_command "$framework" "$mode" "$batch" "$precision" 0 1
  timeout --foreground 1200 "${command[@]}" > /dev/null 2> "$scratch/log" || tail -n 1 "$scratch/log" >&2
done
export TORCHINDUCTOR_COMPILE_THREADS=1

declare -A failed
started=$(date -u +%Y%m%dT%H%M%S)
total=$((rounds * ${#runs[@]})) count=0 SECONDS=0
for round in $(seq "$rounds"); do
  for run in "${runs[@]}"; do
    read -r framework mode batch precision warmup steps <<< "$run"
    count=$((count + 1))
    [[ ${failed[$run]:-} ]] && continue
    left=
    if ((count > 1)); then left=", about $(minutes $((SECONDS * (total - count + 1) / (count - 1)))) left"; fi
    echo -n "$count/$total round $round$left: $mode b$batch $precision $framework: "
    set_command $run
    "$python" "$here/common/run_once.py" "$out/results.jsonl" "$framework" "$mode" "$batch" "$precision" \
      --threads "$threads" --round "$started/$round" --limit "$limit" --patience "$patience" -- "${command[@]}" ||
      failed[$run]=yes
  done
done

"$python" "$here/summarise.py" "$out/results.jsonl" > "$out/summary.md"
cat "$out/summary.md"
