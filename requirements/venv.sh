#!/usr/bin/env bash
# Make .venv from a lock file. PYTHON=python3.12 picks the interpreter, LOCK=cpu|cuda the platform
# (default: cuda where nvidia-smi answers). uv is used when it is on PATH; pip gives the same.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'; then
    echo "error: $("$python" --version 2>&1 || echo "$python") found; clusterctl needs Python 3.10 to 3.13" >&2
    echo "  hint: PYTHON=python3.11 make venv" >&2
    exit 2
fi
lock=${LOCK:-}
if [ -z "$lock" ]; then
    lock=cpu
    if timeout 10 nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then lock=cuda; fi
fi

install() {
    if command -v uv >/dev/null; then
        [ -x .venv/bin/python ] || uv venv --quiet --python "$python" .venv
        # uv does not read pip's settings; a wheel folder named there must count here too.
        UV_FIND_LINKS=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}} VIRTUAL_ENV=$PWD/.venv \
            uv pip install --quiet --compile-bytecode --no-deps -r "requirements/lock-$1.txt" -e .
    else
        [ -x .venv/bin/pip ] || "$python" -m venv .venv
        .venv/bin/pip install --quiet --quiet --disable-pip-version-check --no-deps --no-compile \
            -r "requirements/lock-$1.txt" -e .
        # pip compiles on one core, 90 s; some packages hold templates that are no Python.
        .venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true
    fi
}

echo "Installing requirements/lock-$lock.txt into .venv (a first time downloads it; one to two minutes from a warm cache)" >&2
install "$lock"
if [ "$lock" = cpu ] && ! .venv/bin/python -c 'import torch' 2>/dev/null; then
    # A package index without CPU builds gives the CUDA build under the same version.
    echo "This package index has only the CUDA build of torch: installing its libraries too (about 3 GB)." >&2
    echo "  (an index or wheel folder with CPU builds in PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS avoids it)" >&2
    install cuda
fi
touch .venv/.complete
