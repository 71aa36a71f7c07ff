#!/usr/bin/env bash
# Resolve setup.cfg anew into lock-cuda.txt and lock-cpu.txt. Needs uv (pip install uv) and a package index.
# One resolution serves Python 3.10 to 3.13; the CPU lock is the same without torch's CUDA libraries.
set -euo pipefail
cd "$(dirname "$0")/.."

uv=$(command -v uv || echo .venv/bin/uv)
raw=$(mktemp)
trap 'rm -f "$raw"' EXIT

"$uv" pip compile setup.cfg requirements/engine.txt \
    --extra train --extra wandb --extra web --extra dev \
    --override requirements/overrides.txt --universal --python-version 3.10 \
    --no-header --no-annotate --quiet --output-file "$raw"

# Rows that can never apply on Linux: our own exclusion marker, other systems, browsers.
rows() { grep -vE "sys_platform == '(never|win32|darwin|emscripten)'|platform_system == 'Windows'" "$raw"; }
{
    echo "# Made by requirements/refresh.sh. Install: pip install --no-deps -r requirements/lock-cuda.txt -e ."
    rows
} >requirements/lock-cuda.txt
{
    echo "# Made by requirements/refresh.sh. Install: pip install --no-deps -r requirements/lock-cpu.txt -e ."
    rows | grep -vE '^(nvidia-(cu|nccl|nv[jst])|cuda-|triton)'
} >requirements/lock-cpu.txt
wc -l requirements/lock-*.txt
