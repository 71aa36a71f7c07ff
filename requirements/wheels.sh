#!/usr/bin/env bash
# Collect what the trainer needs beside torch into a folder, for a GPU machine without a network:
#   requirements/wheels.sh FOLDER [PYTHON]     PYTHON is that machine's, such as 3.12 (default)
# There: python3 -m pip install --no-index --no-deps --target site FOLDER/*.whl; PYTHONPATH=site
# The machine has torch with Triton, transformers, numpy, einops, safetensors, pyarrow,
# nvidia-ml-py and psutil already. DuckDB is left out (21 MB): only manifest verbs need it.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:?usage: requirements/wheels.sh FOLDER [PYTHON]}
version=${2:-3.12}
packages="av pillow requests urllib3 idna certifi charset-normalizer beautifulsoup4 soupsieve ftfy wcwidth diffusers importlib-metadata zipp
    bcrypt cffi clustershell click cryptography decorator deprecated fabric invoke
    markdown-it-py mdurl paramiko pycparser pygments pynacl pyyaml rich textual platformdirs
    typing-extensions linkify-it-py uc-micro-py mdit-py-plugins wrapt prometheus-client"

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
