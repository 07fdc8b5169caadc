#!/usr/bin/env bash
# The same path as `make reproduce`, for people without make habits.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
  cat <<'TEXT'
usage: ./run_all.sh [--profile P] [--engine E] [--device D] [--name N] [--resume] [--help]

Sets up the host environment, builds the images that are missing, measures the profile in fresh
containers, and ends with a summary and the verdicts. Results: results/<name>/.

  --profile P   smoke, cpu, folds, paper (CUDA, hours), cpu-paper (many hours), auto
  --engine E    docker, process (no Docker: virtual environments), auto
  --device D    cpu, cuda, auto
  --name N      folder below results/ (default: the profile's name)
  --resume      run only what is missing or broken in that folder
TEXT
}

for argument in "$@"; do
  if [[ "$argument" == "--help" || "$argument" == "-h" ]]; then usage; exit 0; fi
done
./docker/host/setup.sh run
exec .host/bin/python -m artifact reproduce "$@"
