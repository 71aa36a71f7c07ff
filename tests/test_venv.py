"""requirements/venv.sh: what it says while it installs, and what it says when it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT

# A stand-in for uv: the real one needs a package index. Its words are those of uv 0.13. The Python of
# its environments has no pip, and torch once uv has installed a lock that is not in `without-torch`.
UV = """#!/bin/sh
if [ "$1" = venv ]; then
    for venv; do :; done
    mkdir -p "$venv/bin"
    cp "$(dirname "$0")/python-of-venv" "$venv/bin/python"
    exit 0
fi
env | grep -E '^(UV_|SSL_CERT_FILE)' >uv-environment
echo "$*" >>uv-words
echo 'Downloading torch (502.2MiB)' >&2
[ ! -e broken ] || { echo 'error: Failed to fetch: `https://index/simple/torch/`' >&2; exit 1; }
echo ' Downloaded torch' >&2
echo 'Installed 144 packages in 1.13s' >&2
echo ' + accelerate==1.15.0' >&2
"""
PYTHON_OF_VENV = """#!/bin/sh
[ "$2" != pip ] || exit 1
[ "$2" = 'import torch' ] || exec "$REAL_PYTHON" "$@"
for lock in $(grep -o 'lock-c[a-z0-9]*' uv-words); do
    grep -qsx "$lock" without-torch || exit 0
done
echo 'ImportError: libcudart.so.12' >&2
exit 1
"""
# What the interpreter's own pip has in its settings is one test's subject and takes 0.3 s to ask.
PYTHON_WITHOUT_PIP = """#!/bin/sh
[ "$1 $2" != '-m pip' ] || exit 1
exec "$REAL_PYTHON" "$@"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with a space in its name, and a uv that installs nothing first on PATH."""
    folder = tmp_path / "a check out"
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    (folder / "bin").mkdir()
    for name, text in (
        ("uv", UV),
        ("python-of-venv", PYTHON_OF_VENV),
        ("python-without-pip", PYTHON_WITHOUT_PIP),
    ):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    return folder


def make(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    names = ("HOME", "LD_LIBRARY_PATH")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        [folder / "requirements" / "venv.sh"],
        env={**kept, "PATH": path, "PYTHON": str(folder / "bin" / "python-without-pip"),
             "REAL_PYTHON": sys.executable, "LOCK": "cpu", "DRIVER_FILE": str(folder / "no-driver"), **environment},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.long
def test_progress_is_a_few_lines_and_the_log_has_them_all(checkout: Path) -> None:
    done = make(checkout)
    assert done.returncode == 0, done.stderr
    assert "Installing requirements/lock-cpu.txt into .venv" in done.stderr
    assert "  Downloading torch (502.2MiB)" in done.stderr
    assert "  Installed 144 packages" in done.stderr
    assert "accelerate" not in done.stderr
    assert " + accelerate==1.15.0" in (checkout / ".venv/install.log").read_text()
    assert (checkout / ".venv/.complete").exists()


@pytest.mark.parametrize(
    ("driver", "lock"), [("580.65.06", "cuda"), ("570.86.15", "cuda12"), ("525.60.13", "cuda12")]
)
def test_lock_is_chosen_by_the_driver(checkout: Path, driver: str, lock: str) -> None:
    _nvidia_smi(checkout, f"echo {driver}; echo {driver}")
    done = make(checkout, LOCK="", INSTALLER="uv")
    assert f"Installing requirements/lock-{lock}.txt into .venv" in done.stderr


@pytest.mark.long
def test_driver_that_is_too_old_and_driver_that_does_not_answer(checkout: Path) -> None:
    _nvidia_smi(checkout, "echo 470.256.02")
    done = make(checkout, LOCK="")
    assert done.returncode == 2
    assert (
        "error: NVIDIA driver 470.256.02 is too old: CUDA 12 needs 525, CUDA 13 needs 580"
        in done.stderr
    )
    _nvidia_smi(checkout, "echo 'NVIDIA-SMI has failed'; exit 9")
    assert "requirements/lock-cpu.txt" in make(checkout, LOCK="").stderr


CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Oct 10 12:29:05 UTC 2024\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {}  Release Build  (dvs@U16)\n"


@pytest.mark.parametrize(
    ("text", "driver", "said"),
    [
        (OPEN, "580.65.06", "LOCK=cuda: NVIDIA driver 580.65.06 serves CUDA 13"),
        (CLOSED, "570.86.15", "LOCK=cuda12: NVIDIA driver 570.86.15 serves CUDA 12, and CUDA 13 needs 580"),
    ],
)  # fmt: skip
def test_lock_is_chosen_by_the_kernel_module_and_the_reason_said(
    checkout: Path, text: str, driver: str, said: str
) -> None:
    _nvidia_smi(checkout, "echo 'NVIDIA-SMI has failed'; exit 9")
    (checkout / "version").write_text(text.format(driver))
    done = make(checkout, LOCK="", DRIVER_FILE=str(checkout / "version"))
    lines = done.stderr.splitlines()
    assert lines[0] == said
    lock = said.partition(":")[0].removeprefix("LOCK=")
    assert f"Installing requirements/lock-{lock}.txt into .venv" in lines


def test_without_a_driver_it_is_the_cpu_and_says_so(checkout: Path) -> None:
    _nvidia_smi(checkout, "exit 127")
    first, *_ = make(checkout, LOCK="").stderr.splitlines()
    assert first == "LOCK=cpu: this machine has no NVIDIA driver (for nodes with one: LOCK=cuda or LOCK=cuda12)"  # fmt: skip


def test_a_driver_whose_version_cannot_be_read_is_not_taken_for_none(checkout: Path) -> None:
    _nvidia_smi(checkout, "exit 9")
    (checkout / "version").write_text("garbage\n")
    done = make(checkout, LOCK="", DRIVER_FILE=str(checkout / "version"))
    assert done.returncode == 2
    assert "error: an NVIDIA driver is loaded, and its version cannot be read" in done.stderr


@pytest.mark.long
def test_lock_that_is_given_wins_and_another_one_installs_again(checkout: Path) -> None:
    (checkout / "version").write_text(CLOSED.format("570.86.15"))
    (checkout / "setup.cfg").write_text("")
    where = {"DRIVER_FILE": str(checkout / "version")}
    assert "Installing requirements/lock-cpu.txt" in make(checkout, LOCK="cpu", **where).stderr
    assert make(checkout, LOCK="cpu", **where).stderr == ""
    again = make(checkout, LOCK="cuda", **where).stderr
    assert again.startswith("Installing requirements/lock-cuda.txt into .venv")


def _nvidia_smi(checkout: Path, body: str) -> None:
    tool = checkout / "bin" / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(0o755)


def test_environment_may_be_anywhere(checkout: Path, tmp_path: Path) -> None:
    done = make(checkout, VENV=str(tmp_path / "elsewhere"))
    assert done.returncode == 0, done.stderr
    assert f"--python {tmp_path}/elsewhere/bin/python" in (checkout / "uv-words").read_text()
    assert not (checkout / ".venv").exists()


def test_settings_of_pip_reach_uv(checkout: Path) -> None:
    done = make(
        checkout, PIP_INDEX_URL="https://index/simple", PIP_EXTRA_INDEX_URL="https://one https://two",
        PIP_FIND_LINKS="/wheels /more", PIP_CERT="/etc/own.pem",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    given = dict(
        line.split("=", 1) for line in (checkout / "uv-environment").read_text().splitlines()
    )
    assert given["UV_DEFAULT_INDEX"] == "https://index/simple"
    assert given["UV_INDEX"] == "https://one https://two"
    assert given["UV_INDEX_STRATEGY"] == "unsafe-best-match"  # pip knows no order among indexes
    assert given["UV_FIND_LINKS"] == "/wheels,/more"
    assert given["SSL_CERT_FILE"] == "/etc/own.pem"


@pytest.mark.long
def test_settings_in_pips_files_reach_uv(checkout: Path) -> None:
    (checkout / "pip.conf").write_text("[global]\nindex-url = https://index/simple\n")
    where = {"PYTHON": sys.executable, "PIP_CONFIG_FILE": str(checkout / "pip.conf")}
    assert make(checkout, **where).returncode == 0
    assert "UV_DEFAULT_INDEX=https://index/simple" in (checkout / "uv-environment").read_text()


@pytest.mark.long
def test_an_index_without_cpu_builds_gets_the_libraries_of_the_cuda_build(checkout: Path) -> None:
    (checkout / "without-torch").write_text("lock-cpu\n")
    done = make(checkout)
    assert done.returncode == 0, done.stderr
    assert "only the CUDA build of torch: installing its libraries too" in done.stderr
    assert "-r requirements/lock-cuda.txt" in (checkout / "uv-words").read_text()
    assert (checkout / ".venv/.complete").read_text() == "cpu\n"


@pytest.mark.long
def test_an_environment_that_cannot_import_torch_is_not_finished(checkout: Path) -> None:
    (checkout / "without-torch").write_text("lock-cpu\nlock-cuda\n")
    done = make(checkout)
    assert done.returncode == 2
    assert "ImportError: libcudart.so.12" in done.stderr
    assert not (checkout / ".venv/.complete").exists()


@pytest.mark.long
def test_finished_environment_is_left_alone_and_another_python_makes_it_again(
    checkout: Path, tmp_path: Path
) -> None:
    (checkout / "setup.cfg").touch()
    assert make(checkout).returncode == 0
    kept = checkout / ".venv" / "kept"
    kept.touch()
    done = make(checkout)
    assert (done.returncode, done.stderr) == (0, "")
    assert kept.exists()
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho Python 9.9\n")
    other.chmod(0o755)
    done = make(checkout, PYTHON=str(other))
    assert "making it again for Python 9.9" in done.stderr
    assert not kept.exists()


def test_failure_shows_the_last_lines_and_leaves_no_finished_environment(checkout: Path) -> None:
    (checkout / "broken").touch()
    done = make(checkout)
    assert done.returncode == 2
    assert "error: Failed to fetch" in done.stderr
    assert "error: the packages could not be installed" in done.stderr
    assert "hint: all output: .venv/install.log" in done.stderr
    assert not (checkout / ".venv/.complete").exists()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            "[ $1 = --version ] && echo Python 3.9.2",
            "Python 3.9.2 found; clusterctl needs Python 3.10 to 3.13",
        ),
        (
            'case "$*" in *venv*) echo "No module named ensurepip" >&2; exit 1;; esac',
            "apt install python3-venv",
        ),
    ],
    ids=["too old", "without the venv module"],
)
def test_python_that_will_not_do_is_named_with_what_to_do(
    checkout: Path, program: str, words: str
) -> None:
    python = checkout / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    done = make(checkout, PYTHON=str(python), INSTALLER="pip")
    assert done.returncode == 2
    assert words in done.stderr
    assert not (checkout / ".venv").exists()
