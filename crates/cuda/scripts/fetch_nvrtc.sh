#!/usr/bin/env bash
# Fetches NVIDIA's run-time compiler into a folder, so that kernels are compiled for real where there is no GPU:
#
#   crates/cuda/scripts/fetch_nvrtc.sh FOLDER
#   VIRTUAL_ENV=FOLDER cargo test --profile checked -p bessemer-cuda --test resources
set -euo pipefail

folder=${1:?usage: fetch_nvrtc.sh FOLDER}
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-deps nvidia-cuda-nvrtc==13.0.88
find "$folder" -name 'libnvrtc.so.*'
