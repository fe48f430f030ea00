#!/usr/bin/env bash
# Checks the CUDA backend on a machine with an NVIDIA GPU: op cases, tokens against the CPU, kernel times, decode with
# graphs on and off. Results go to benchmarks/results/. Needs torch with CUDA and Triton; no network: what else isoinfer
# imports comes from installed packages or from the folder of wheels in WHEELS. Arguments are passed on (--dry-run).
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
backend=${BACKEND:-cuda}
target=$(mktemp -d)
trap 'rm -rf "$target" build' EXIT

install=("$python" -m pip install --quiet --disable-pip-version-check --no-index --target "$target")
for package in numpy pluggy safetensors tokenizers jinja2 gguf pydantic typer rich; do
  "$python" -c "import $package" 2>/dev/null && continue
  [ -n "${WHEELS:-}" ] || { echo "error: $package is not installed; put its wheel into a folder and set WHEELS" >&2; exit 2; }
  "${install[@]}" --find-links "$WHEELS" "$package"
done
"${install[@]}" --no-deps --no-build-isolation .
PYTHONPATH="$target" "$python" benchmarks/device_check/main.py --backend "$backend" "$@"
