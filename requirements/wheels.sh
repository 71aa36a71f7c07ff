#!/usr/bin/env bash
# Collect what `python -m tests.gpu first` lacks on a GPU machine without a network into a folder:
#   requirements/wheels.sh FOLDER [PYTHON]     PYTHON is that machine's, such as 3.12 (default)
# There: python3 -m pip install --no-index --no-deps --target site FOLDER/*.whl; PYTHONPATH=.:site
# The machine has torch with Triton, transformers, numpy, einops, safetensors, pyarrow,
# nvidia-ml-py and psutil already. It gets ColossalAI for that engine, and diffusers for the image
# half of the VAE: importing it needs requests (with urllib3) and Pillow. PyAV (34 MB), DuckDB and
# what opens ssh connections stay away: no item decodes a clip or asks another machine.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:?usage: requirements/wheels.sh FOLDER [PYTHON]}
version=${2:-3.12}
packages="diffusers requests urllib3 charset-normalizer pillow"

mkdir -p "$folder"
wanted=$(mktemp)
trap 'rm -f "$wanted"' EXIT
for package in $packages; do # versions and hashes of the lock, which pip checks
    awk -v name="$package" '
        /^[A-Za-z0-9]/ { on = tolower($1) ~ "^" name "(\\[|==)" }
        on { print }' requirements/lock-cpu.txt
done >"$wanted"
.venv/bin/python -m pip download --quiet --no-deps --require-hashes --only-binary :all: \
    --python-version "$version" --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --platform linux_x86_64 --dest "$folder" -r "$wanted"
.venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --require-hashes \
    --wheel-dir "$folder" -r requirements/lock-sources.txt
du -sh "$folder"
