#!/usr/bin/env bash
# Fetches an MPI with the standard ABI into a folder, for the test that needs one:
#
#   crates/comm/scripts/fetch_mpi_abi.sh FOLDER
#   BESSEMER_TEST_MPI_ABI=FOLDER cargo test --profile checked -p bessemer-comm --test mpi
set -euo pipefail

folder=${1:?usage: fetch_mpi_abi.sh FOLDER}
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-deps mpich==5.0.2
find "$folder" -name 'libmpi_abi.so.1'
