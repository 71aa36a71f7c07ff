#!/usr/bin/env bash
# Make an environment from a lock file, and show what is being done. Settings by environment:
#   PYTHON=python3.12   the interpreter           VENV=.venv   the folder to make
#   LOCK=cpu|cuda|cuda12  the platform (default: by this machine's NVIDIA driver; it says which and why)
#   DRIVER_FILE=        where the driver's version stands (default: /proc/driver/nvidia/version)
#   INSTALLER=uv|pip    default: uv, from PATH or from the package index; pip where there is no uv
#   COMPILE=            empty: no bytecode now; Python makes it when it first imports a module
#   VERIFY=no           install files whose hash is not in the lock (another index's builds of torch)
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=${VENV:-.venv}
compile=${COMPILE-yes}
verify=${VERIFY:-yes}
log=$venv/install.log

die() {
    echo "error: $1" >&2
    [ -z "${2:-}" ] || echo "  hint: $2" >&2
    exit 2
}

if ! "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
    die "$("$python" --version 2>/dev/null || echo "$python") found; clusterctl needs Python 3.10 to 3.13" \
        "PYTHON=python3.11 make venv"
fi
choose_lock() { # by the driver, sets lock and why: of the kernel module, else what nvidia-smi says
    local file=${DRIVER_FILE:-/proc/driver/nvidia/version} driver=
    [[ $(head -n 1 "$file" 2>/dev/null) =~ \ ([0-9]{3,4}\.[0-9.]*[0-9])(\ |$) ]] && driver=${BASH_REMATCH[1]}
    if [ -z "$driver" ]; then
        driver=$(timeout 10 nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
        [[ $driver =~ ^[0-9]+\. ]] || driver=
    fi
    if [ -z "$driver" ]; then
        [ ! -e "$file" ] || die "an NVIDIA driver is loaded, and its version cannot be read in $file" \
            "LOCK=cuda make venv for driver 580 or newer, LOCK=cuda12 for 525 to 579"
        lock=cpu why="this machine has no NVIDIA driver (for nodes with one: LOCK=cuda or LOCK=cuda12)"
        return
    fi
    # CUDA 13 needs driver 580, CUDA 12 needs 525; checks/reference/cuda_driver.py names NVIDIA's table.
    if [ "${driver%%.*}" -ge 580 ]; then
        lock=cuda why="NVIDIA driver $driver serves CUDA 13"
    elif [ "${driver%%.*}" -ge 525 ]; then
        lock=cuda12 why="NVIDIA driver $driver serves CUDA 12, and CUDA 13 needs 580"
    else
        die "NVIDIA driver $driver is too old: CUDA 12 needs 525, CUDA 13 needs 580" \
            "update the driver; LOCK=cpu make venv installs without CUDA"
    fi
}
lock=${LOCK:-} why=
[ -n "$lock" ] || choose_lock
[ -f "requirements/lock-$lock.txt" ] || die "there is no requirements/lock-$lock.txt" "LOCK=cpu, LOCK=cuda or LOCK=cuda12"

version() { "$1" -c 'import sys; print("Python {}.{}".format(*sys.version_info))' 2>/dev/null || true; }
if [ -n "${PYTHON:-}" ] && [ -x "$venv/bin/python" ] && [ "$(version "$venv/bin/python")" != "$(version "$python")" ]; then
    echo "$venv has $(version "$venv/bin/python"); making it again for $(version "$python")" >&2
    rm -rf "$venv"
fi
is_new() { # whether anything that the environment is made of is newer than it
    local file
    for file in "requirements/lock-$lock.txt" requirements/lock-sources.txt setup.cfg; do
        [ "$venv/.complete" -nt "$file" ] || return 0
    done
    local had
    had=$(cat "$venv/.complete") # empty in one that was made before its lock was noted
    [ -n "${LOCK:-}" ] && [ -n "$had" ] && [ "$had" != "$lock" ]
}
is_new || exit 0
[ -n "${LOCK:-}" ] || echo "LOCK=$lock: $why" >&2

# Lines of pip or uv to a few lines of progress; all of them go to the log.
show() {
    local line packages=0 total shown=-9 status
    total=$(grep -c '==' "requirements/lock-$1.txt")
    while :; do
        if IFS= read -r -t 15 line; then
            echo "$line" >>"$log"
            case $line in
            Collecting\ *)
                packages=$((packages + 1))
                if [ $((SECONDS - shown)) -ge 3 ]; then
                    shown=$SECONDS
                    echo "  $packages of at most $total packages: $(cut -d' ' -f2 <<<"$line")"
                fi
                ;;
            "Installing collected packages"*) echo "  unpacking $packages packages" ;;
            *Downloading\ *.whl*[0-9][0-9].[0-9]\ MB*) echo "  $(sed 's/^ *//' <<<"$line")" ;; # pip, 10 MB and more
            *Downloading\ *.whl* | *Downloading\ *.tar*) ;;
            *Downloading\ *) echo "  $(sed 's/^ *//' <<<"$line")" ;;
            Prepared\ * | Installed\ *) echo "  $line" ;;
            esac
        else
            status=$?
            [ $status -gt 128 ] || break # the end of the output; above 128 nothing came for 15 s
            echo "  still at it after $SECONDS s"
        fi
    done
} >&2

pip_setting() { # what pip would use: its environment, then its files, where there is a pip to read them
    local scope settings variable
    variable=PIP_$(tr a-z- A-Z_ <<<"$1")
    if [ -n "${!variable:-}" ]; then
        echo "${!variable}"
        return
    fi
    settings=$("$venv/bin/python" -m pip config list 2>/dev/null || "$python" -m pip config list 2>/dev/null || true)
    for scope in install global; do
        sed -n "s/^$scope\.$1='\(.*\)'$/\1/p" <<<"$settings" | grep . && return
    done
    return 0
}

install_with_uv() { # uv reads none of pip's settings: indexes, wheel folders and certificates count here too
    local index extra links certificates
    index=$(pip_setting index-url) extra=$(pip_setting extra-index-url) links=$(pip_setting find-links)
    certificates=$(pip_setting cert)
    [ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"
    [ -z "$extra" ] || export UV_INDEX="${UV_INDEX:-$extra}" UV_INDEX_STRATEGY=unsafe-best-match
    [ -z "$links" ] || export UV_FIND_LINKS="${UV_FIND_LINKS:-${links// /,}}"
    [ -z "$certificates" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$certificates}"
    local into=("$uv" pip install --python "$venv/bin/python" --no-deps)
    # What is built from source is built with the locked setuptools, which is there by then.
    {
        "${into[@]}" --only-binary :all: -r "$(lock_file "lock-$1")" &&
            "${into[@]}" --no-build-isolation -r "$(lock_file lock-sources)" &&
            "${into[@]}" --no-build-isolation ${compile:+--compile-bytecode} -e . # compiles all of the environment
    } 2>&1 | show "$1"
}

install_with_pip() {
    local pip=("$venv/bin/python" -m pip install --disable-pip-version-check --no-deps --no-compile --progress-bar off)
    {
        "${pip[@]}" --only-binary :all: -r "$(lock_file "lock-$1")" &&
            "${pip[@]}" --no-build-isolation -r "$(lock_file lock-sources)" &&
            "${pip[@]}" --no-build-isolation -e .
    } 2>&1 | show "$1" || return
    [ -n "$compile" ] || return 0
    echo "  compiling" >&2
    # pip compiles on one core, 90 s; some packages hold templates that are no Python.
    "$venv/bin/python" -m compileall -q -j 0 "$venv/lib" >/dev/null 2>&1 || true
}

lock_file() { # the lock, or with VERIFY=no a copy without hashes
    if [ "$verify" != no ]; then
        echo "requirements/$1.txt"
        return
    fi
    sed -E '/^ +--hash=/d; s/ \\$//' "requirements/$1.txt" >"$venv/$1.txt"
    echo "$venv/$1.txt"
}

install() {
    echo "Installing requirements/lock-$1.txt into $venv" >&2
    if [ -n "$uv" ]; then
        install_with_uv "$1" && return
        "$venv/bin/python" -m pip --version >/dev/null 2>&1 || fail
        tail -n 5 "$log" >&2
        echo "uv could not install it; pip tries" >&2
        uv=
    fi
    install_with_pip "$1" || fail
}

fail() {
    tail -n 20 "$log" >&2
    if grep -qiE 'hash mismatch|do not match the hashes' "$log"; then
        die "a file is not the one that requirements/lock-*.txt knows" \
            "another index's build of torch? requirements/refresh.py adds its hashes, VERIFY=no goes without"
    fi
    die "the packages could not be installed" "all output: $log"
}

uv=
[ "${INSTALLER:-uv}" = pip ] || uv=$(command -v uv || true)
if [ -n "$uv" ]; then
    [ -x "$venv/bin/python" ] || "$uv" venv --quiet --seed --python "$python" "$venv"
else
    # A venv whose making was cut short has no pip.
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        rm -rf "$venv"
        echo "Making $venv for $("$python" --version)" >&2
        "$python" -m venv "$venv" >&2 || {
            rm -rf "$venv"
            die "$python cannot make an environment" "Debian and Ubuntu: apt install python3-venv; or install uv"
        }
    fi
    # uv installs the lock in a fifth of pip's time; without it in the package index pip does it all.
    if [ "${INSTALLER:-uv}" != pip ] && "$venv/bin/python" -m pip install --quiet --quiet \
        --disable-pip-version-check uv >/dev/null 2>&1; then
        uv=$venv/bin/uv
    fi
fi
: >"$log"

works() { "$venv/bin/python" -c 'import torch' 2>>"$log"; }

install "$lock"
if ! works; then
    [ "$lock" = cpu ] || fail
    # A package index without CPU builds gives the CUDA build under the same version.
    echo "This package index has only the CUDA build of torch: installing its libraries too (about 3 GB)." >&2
    echo "  (an index or wheel folder with CPU builds in PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS avoids it)" >&2
    install cuda
    works || fail
fi
echo "$lock" >"$venv/.complete"
