#!/usr/bin/env bash
# Fetches cuDNN with the libraries that it needs into a folder (1.3 GB), so that it can be asked what it supports where
# there is no GPU:
#
#   crates/cuda/scripts/fetch_cudnn.sh FOLDER
#   VIRTUAL_ENV=FOLDER cargo test --profile checked -p bessemer-cuda --test cudnn
set -euo pipefail

folder=${1:?usage: fetch_cudnn.sh FOLDER}
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-deps \
  nvidia-cudnn-cu13==9.19.0.56 nvidia-cublas==13.1.0.3 nvidia-cuda-nvrtc==13.0.88
find "$folder" -name 'libcudnn.so.*'
