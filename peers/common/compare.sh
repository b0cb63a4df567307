# What the comparisons share; sourced by them. They set, before they call `compare "$@"`:
#
# model         its name in `bench` events
# items         of each: mode, batch, precision, warm-up steps, timed steps, frameworks
# emulates_bf16 frameworks that are measured in bf16 on processors without it, too
# default_rounds
# set_command   function of FRAMEWORK MODE BATCH PRECISION WARMUP STEPS that sets the array `command`
# make_onnx     function that writes the ONNX file into $scratch
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
threads=$(nproc) quick= emulated= limit=240 patience=60

parse_arguments() {
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
    sed -n '2,/^[^#]/{/^#/s/^# \?//p}' "$0" >&2
    exit 2
  fi
  bessemer=$1 python=$2 out=$3 rounds=${4:-$default_rounds}
}

has_bf16() { grep -qw -e avx512_bf16 -e amx_bf16 -e bf16 /proc/cpuinfo; }

is_left_out() { # FRAMEWORK PRECISION
  [[ $2 == bf16 && -z $emulated && " $emulates_bf16 " != *" $1 "* ]] && ! has_bf16
}

minutes() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# One line for each measurement of a round: FRAMEWORK MODE BATCH PRECISION WARMUP STEPS
list_runs() {
  local item mode batch precision warmup steps frameworks framework
  runs=() left_out=()
  for item in "${items[@]}"; do
    read -r mode batch precision warmup steps frameworks <<< "$item"
    for framework in $frameworks; do
      if is_left_out "$framework" "$precision"; then
        left_out+=("$framework $mode $batch $precision")
      else
        [[ $quick ]] && batch=$((batch > 2 ? 2 : batch)) warmup=1 steps=1
        runs+=("$framework $mode $batch $precision $warmup $steps")
      fi
    done
  done
}

# Compiled code stays in the caches: no measured process calls a compiler, nor has it workers beside it.
fill_caches() {
  local run framework mode batch precision
  for run in "${runs[@]}"; do
    read -r framework mode batch precision _ <<< "$run"
    [[ $framework == pytorch+compile || $framework == jax ]] || continue
    echo "compiling $framework $mode b$batch $precision"
    set_command "$framework" "$mode" "$batch" "$precision" 0 1
    timeout --foreground 1200 "${command[@]}" > /dev/null 2> "$scratch/log" || tail -n 1 "$scratch/log" >&2
  done
}

measure_rounds() {
  local -A failed=()
  local started total count=0 round run left framework mode batch precision warmup steps
  started=$(date -u +%Y%m%dT%H%M%S) total=$((rounds * ${#runs[@]})) SECONDS=0
  for run in "${left_out[@]}"; do
    read -r framework mode batch precision <<< "$run"
    echo -n "$mode b$batch $precision $framework: "
    "$python" "$here/common/run_once.py" "$out/results.jsonl" "$framework" "$model" "$mode" "$batch" "$precision" \
      --threads "$threads" --round "$started/1" --left-out "left out: the processor has no bf16 instructions" || true
  done
  for round in $(seq "$rounds"); do
    for run in "${runs[@]}"; do
      read -r framework mode batch precision warmup steps <<< "$run"
      count=$((count + 1))
      [[ ${failed[$run]:-} ]] && continue
      left=
      if ((count > 1)); then left=", about $(minutes $((SECONDS * (total - count + 1) / (count - 1)))) left"; fi
      echo -n "$count/$total round $round$left: $mode b$batch $precision $framework: "
      set_command $run
      "$python" "$here/common/run_once.py" "$out/results.jsonl" "$framework" "$model" "$mode" "$batch" "$precision" \
        --threads "$threads" --round "$started/$round" --limit "$limit" --patience "$patience" -- "${command[@]}" ||
        failed[$run]=yes
    done
  done
}

compare() {
  parse_arguments "$@"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  export TORCHINDUCTOR_CACHE_DIR=$scratch/inductor
  export JAX_COMPILATION_CACHE_DIR=$scratch/jax JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
  mkdir -p "$out"
  list_runs
  echo "making the ONNX file and looking at the machine"
  make_onnx 2> "$scratch/log" || cat "$scratch/log" >&2
  "$bessemer" doctor --json --threads "$threads" > "$out/machine.json"
  fill_caches
  export TORCHINDUCTOR_COMPILE_THREADS=1
  measure_rounds
  "$python" "$here/summarise.py" "$out/results.jsonl" > "$out/summary.md"
  cat "$out/summary.md"
}
