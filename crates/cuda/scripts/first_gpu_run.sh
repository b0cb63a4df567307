#!/usr/bin/env bash
# Everything that is to be known of a machine with a GPU, in one folder:
#
#   crates/cuda/scripts/first_gpu_run.sh BESSEMER FOLDER
#
# BESSEMER is the program, built on any machine. Each part has a time limit, and none stops the others.
set -uo pipefail

bessemer=$(realpath "${1:?usage: first_gpu_run.sh BESSEMER FOLDER}")
folder=${2:?usage: first_gpu_run.sh BESSEMER FOLDER}
peers=$(realpath "$(dirname "$0")/../../../peers")
mkdir -p "$folder"

part() { # NAME SECONDS COMMAND...
  local name=$1 limit=$2
  shift 2
  if timeout "$limit" "$@" > "$folder/$name" 2> "$folder/$name.err"; then
    echo "$name: done"
  else
    echo "$name: failed: $(tail -n 1 "$folder/$name.err")"
  fi
}

part nvidia-smi.txt 30 nvidia-smi -q
part libc.txt 10 ldd --version
part packages.txt 60 python3 -m pip list --format=freeze
part doctor.json 120 "$bessemer" doctor --json
part selftest.json 530 "$bessemer" gpu-selftest --cubins "$folder/cubins"
part baselines-ceilings.json 300 python3 "$peers/gpu_baselines.py" --only copies --only products
for workload in resnet50 bert-base electra-base maskrcnn-r50; do
  part "baselines-$workload.json" 540 python3 "$peers/gpu_baselines.py" --only "$workload"
done
