#!/usr/bin/env bash
# Writes what cuDNN supports on a device that is not there as JSON and as a page, from a description of its properties:
#
#   crates/cuda/scripts/cudnn_support.sh FOLDER h200|a100 OUT
#
# FOLDER is what fetch_cudnn.sh made. The mock of the driver lets engines compile their kernels. Takes twelve minutes of processor
# time.
set -euo pipefail

usage="usage: cudnn_support.sh FOLDER h200|a100 OUT"
folder=${1:?$usage} device=${2:?$usage} out=${3:?$usage}
crate=$(dirname "$0")/..
libraries=$folder/mock:$(find "$folder" -path '*/nvidia/*/lib' -type d | paste -sd:)
mkdir -p "$folder/mock" "$out"
c++ -std=c++17 -O1 -w -shared -fPIC -o "$folder/mock/libcuda.so.1" "$crate/tests/mock/libcuda.cpp" -ldl \
  -Wl,-soname,libcuda.so.1
cargo run --release --manifest-path "$crate/Cargo.toml" --example cudnn_support -- \
  "$device" "$libraries" "$out" "$(date --utc +%F)"
