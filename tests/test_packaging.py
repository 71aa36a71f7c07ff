"""The wheel, the locks, the two commands' files: what a user installs."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.sources import ROOT, copy_sources

HEAVY = {"torch", "textual", "paramiko", "fabric", "rich", "numpy", "transformers", "colossalai"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy of what git would hand out, so that this folder stays clean."""
    source = tmp_path_factory.mktemp("source")
    copy_sources(source)
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source],
        check=True, capture_output=True,
    )  # fmt: skip
    (path,) = out.glob("*.whl")
    return path


@pytest.mark.long
def test_wheel_holds_exactly_the_four_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "checks", "clusterctl", "dashboards", "trainer",
    }  # fmt: skip


def test_wheel_carries_what_is_not_python(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    data = ("clusterctl/py.typed", "clusterctl/stacks/report.html", "dashboards/tui/theme.tcss")
    data += ("dashboards/export/clusterctl.json",)
    for wanted in (*data, "dashboards/export/clusterctl-alerts.yml", "trainer/configs/demo.py"):
        assert wanted in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def _modules_after(code: str) -> set[str]:
    # to stderr: a help text may hold a module's name
    script = f"{code}\nimport sys; print('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return {name.split(".")[0] for name in done.stderr.split()}


@pytest.mark.long
@pytest.mark.parametrize(
    "code",
    [
        "from clusterctl.cli import run; assert run(['--help']) == 0",
        "from clusterctl.cli import run; assert run(['gpus', '--help']) == 0",
        "from clusterctl.cli import run; assert run(['launch', '--help']) == 0",
        "import trainer.runlog.telemetry",
        "import checks.runner, checks.facts",
        "from trainer.config.__main__ import main; assert main(['show', 'stage1', '--grad-checkpoint', '24 GB']) == 0",
    ],
)
def test_light_paths_import_nothing_heavy(code: str) -> None:
    assert not _modules_after(code) & HEAVY


def test_every_command_has_a_file_a_summary_and_two_examples() -> None:
    from clusterctl.cli import COMMANDS, _summary, group

    paths = [
        *(ROOT / "clusterctl/commands").rglob("*.py"),
        *(ROOT / "dashboards/commands").glob("*.py"),
    ]
    files = [p.stem.replace("_", "-") for p in paths if "def command(" in p.read_text()]
    assert sorted(files) == sorted(COMMANDS)
    for name in COMMANDS:
        command = group.get_command(None, name)  # type: ignore[arg-type]
        assert _summary(name), name
        assert command is not None
        assert "Examples:" in (command.epilog or ""), name
        assert (command.epilog or "").count("clusterctl " + name) >= 2, name


def _entries(name: str) -> list[str]:
    text = (ROOT / "requirements" / name).read_text()
    return [one for one in re.split(r"\n(?=\S)", text) if not one.startswith("#")]


def test_locks_pin_every_file_by_its_hash_and_hold_the_engine() -> None:
    for name in ("lock-cpu.txt", "lock-cuda.txt", "lock-cuda12.txt", "lock-sources.txt"):
        for entry in _entries(name):
            assert re.match(r"[A-Za-z0-9_.-]+==\S+", entry), entry
            head, *hashes = entry.rstrip().split(" \\\n")
            assert "\n" not in head
            assert hashes, f"{name}: {head} has no hash"
            assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", one) for one in hashes), head
    assert [entry.split()[0] for entry in _entries("lock-sources.txt")] == ["colossalai==0.5.0"]
    nccl = {"lock-cuda.txt": {"nvidia-nccl-cu13"}, "lock-cuda12.txt": {"nvidia-nccl-cu12"}}
    for name in ("lock-cpu.txt", "lock-cuda.txt", "lock-cuda12.txt"):
        names = {entry.split("==")[0] for entry in _entries(name)}
        assert {"torch", "setuptools"} <= names
        assert "colossalai" not in names
        assert {one for one in names if one.startswith("nvidia-nccl")} == nccl.get(name, set())


def test_locks_differ_in_torch_and_its_libraries_only() -> None:
    of_torch = re.compile("torch==|nvidia-(cu|nccl|nv[jst])|cuda-|triton")
    cpu, *others = (
        {entry.split()[0] for entry in _entries(name) if not of_torch.match(entry)}
        for name in ("lock-cpu.txt", "lock-cuda.txt", "lock-cuda12.txt")
    )
    assert others == [cpu, cpu]


def test_locks_hold_everything_setup_cfg_asks_for() -> None:
    from importlib.metadata import requires

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    locked = {
        canonicalize_name(line.split("==")[0])
        for line in (ROOT / "requirements/lock-cpu.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    wanted = {canonicalize_name(Requirement(text).name) for text in requires("clusterctl") or []}
    assert wanted <= locked


def test_readme_and_make_agree_on_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"make {target}" in readme
        assert re.search(rf"^{target}:", makefile, re.M)
    assert "\nmake test long=" in (ROOT / ".ci/run").read_text()
    assert "make test-pythons" in (ROOT / ".ci/run").read_text()
