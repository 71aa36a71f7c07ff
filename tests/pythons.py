"""Every Python that the README promises: `python -m tests.pythons [--only 3.12] [--skip-demo]`.

For each of them the environment from the lock, the import of every module, the tests of video and loader
(those of video also with the newest PyAV tried), and a short demo: as root, the demo runs as an ordinary user
in a home with a space in its path. The oldest and the newest also get mypy and the tests of payloads and
commands: what changes between Pythons shows at an end. The Python of .venv, whose tests `make test` runs all,
only gets the demo here. While one is tried the environments of the next are made. The last line names every
version and what broke. Exit code 1 if one did, 3 if one could not be tried.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.sources import ROOT, copy_sources

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
OWN = "{}.{}".format(*sys.version_info)
NOBODY = 65534
LIMIT_S = 900  # of one step
TESTS = (
    "tests/test_imports.py",
    "tests/clusterctl/test_cli.py",
    "tests/clusterctl/remote/test_payload.py",
    "tests/trainer/config/test_load.py",
    "tests/trainer/test_command_line.py",
    "tests/trainer/data/video/test_mp4.py",
    "tests/trainer/data/video/test_containers.py",
    "tests/trainer/data/loader/test_loader.py",
    "tests/trainer/data/video/test_decode.py",
    "tests/trainer/data/video/test_helper_process.py",
    "tests/trainer/data/video/test_clip.py",
)
AT_THE_ENDS = (
    "tests/clusterctl/payload",
    "tests/clusterctl/commands",
    "tests/trainer/data/manifest/test_manifest.py",
    "tests/trainer/data/tools/test_probe_check.py",
    "tests/trainer/data/video/test_upstream_resize.py",
    "tests/trainer/data/video/test_windows.py",
)
ENDS = (VERSIONS[0], VERSIONS[-1])

# The lock has one PyAV for all Pythons; who installs without it gets a newer one from Python 3.12 on.
NEWEST_PYAV, TAKES_NEWEST_PYAV = "av==19.0.2", ENDS[1]
OF_VIDEO = [
    test
    for test in (*TESTS, *AT_THE_ENDS)
    if any(word in test for word in ("video", "containers", "probe", "mp4"))
]


class Broken(Exception):
    """A step failed; the text names the step."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=VERSIONS, metavar="VERSION")
    parser.add_argument("--skip-demo", action="store_true")
    args = parser.parse_args()
    versions = args.only or VERSIONS
    with ThreadPoolExecutor(1) as maker:
        made = {
            version: maker.submit(make_environment, base, environment_of(version))
            for version in versions
            if version != OWN and (base := interpreter(version)) is not None
        }
        results = {version: try_version(version, made, args.skip_demo) for version in versions}
    words = ", ".join(f"{version} {result}" for version, result in results.items())
    print(f"Pythons: {words}", flush=True)
    if any(result.startswith("broken") for result in results.values()):
        return 1
    return 3 if "not found" in results.values() else 0


def try_version(version: str, made: Mapping[str, Future[None]], skip_demo: bool) -> str:
    """Returns ok, not found, or broken with the step."""
    python = sys.executable
    steps: list[tuple[str, Callable[[str], None]]] = [] if skip_demo else [("demo", run_demo)]
    if version != OWN:
        if version not in made:
            return "not found"
        python = str(environment_of(version) / "bin" / "python")
        steps = [
            ("environment", lambda _: made[version].result()),
            ("lint and tests", run_lint_and_tests) if version in ENDS else ("tests", run_tests),
            *([("newest PyAV", run_newest_pyav)] if version == TAKES_NEWEST_PYAV else []),
            *(steps if version in ENDS else []),
        ]
    for name, step in steps:
        began = time.monotonic()
        print(f"Python {version}: {name}", flush=True)
        try:
            step(python)
        except (Broken, OSError, subprocess.SubprocessError) as error:
            print(f"Python {version}: {name} failed: {error}", flush=True)
            return f"broken ({name})"
        print(f"Python {version}: {name} took {time.monotonic() - began:.0f} s", flush=True)
    return "ok"


def interpreter(version: str) -> str | None:
    """An interpreter of this version: on PATH, of pyenv or of uv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python3"))]
    uv = shutil.which("uv")
    if uv:
        asked = [uv, "python", "find", "--no-python-downloads", version]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
        found.append(answer.stdout.strip())
    # A pyenv shim stands on PATH for versions that are not switched on, so each is tried.
    question = "import sys; print('{}.{}'.format(*sys.version_info))"
    for path in filter(None, map(str, filter(None, found))):
        answer = subprocess.run(
            [path, "-c", question], capture_output=True, text=True, timeout=60, check=False
        )
        if answer.stdout.strip() == version:
            return path
    return None


def environment_of(version: str) -> Path:
    return ROOT / ".pythons" / f"Python {version}"  # a path with a space


def make_environment(python: str, folder: Path) -> None:
    """From the lock, without bytecode: less than a tenth of it is ever imported here."""
    folder.parent.mkdir(exist_ok=True)
    settings = {"PYTHON": python, "VENV": str(folder.relative_to(ROOT)), "COMPILE": ""}
    done = subprocess.run(
        ["requirements/venv.sh"], cwd=ROOT, env={**os.environ, **settings}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Broken(f"exit code {done.returncode}: {done.stdout[-2000:]}")


def run_lint_and_tests(python: str) -> None:
    """Together: the tests wait for processes most of the time, and mypy takes one core."""
    cache = str(Path(python).parents[1] / ".mypy")
    with tempfile.TemporaryFile("w+") as output:
        lint = subprocess.Popen(
            [python, "-m", "mypy", "--cache-dir", cache],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
        try:
            run_tests(python, (*TESTS, *AT_THE_ENDS))
            lint.wait(LIMIT_S)
        finally:
            lint.kill()
            lint.wait()
        output.seek(0)
        print(output.read(), flush=True)
    if lint.returncode:
        raise Broken("mypy finds errors with this Python's packages")


def run_tests(python: str, tests: Sequence[str] = TESTS) -> None:
    """As `make test`: what failed beside other tests runs once more, alone."""
    pytest = [python, "-m", "pytest", "-q", "-o", f"cache_dir={Path(python).parents[1]}/.pytest"]
    try:
        run([*pytest, "-n", "4", "--dist", "loadfile", *tests])
    except Broken:
        print("failed beside other tests; once more, alone:", flush=True)
        alone = ["--last-failed", "--last-failed-no-failures", "none", "--maxfail", "6"]
        run([*pytest, *alone, *tests])


def run_newest_pyav(python: str) -> None:
    """Beside the environment, not in it."""
    folder = Path(python).parents[1] / "newest-pyav"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    run([*install, "--target", str(folder), NEWEST_PYAV])
    run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *OF_VIDEO], PYTHONPATH=str(folder))


def run_demo(python: str) -> None:
    """As somebody else where we are root, from a copy of the sources in their home."""
    with home_with_a_space() as home:
        sources = home / "clusterctl"
        copy_sources(sources)
        demo = [python, "-m", "clusterctl", "demo", "--steps", "6", "--no-score"]
        if os.geteuid() == 0:
            for path in [home, *home.rglob("*")]:
                os.lchown(path, NOBODY, NOBODY)
            base = subprocess.run(
                [python, "-c", "import sys; print(sys.base_prefix)"],
                capture_output=True, text=True, check=True,
            ).stdout.strip()  # fmt: skip
            paths = [base, str(ROOT)]
            apart = ["unshare", "--mount", "--propagation", "private", sys.executable]
            demo = [*apart, str(ROOT / "tests/as_user.py"), str(NOBODY), *paths, "--", *demo]
        run(demo, cwd=sources, HOME=str(home))


@contextmanager
def home_with_a_space() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pythons-"))
    folder.chmod(0o755)
    try:
        home = folder / "home of a user"
        home.mkdir()
        yield home
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(command: list[str], cwd: Path = ROOT, **environment: str) -> None:
    """Run it with its output passed on, and bytecode kept: hundreds of processes import torch. Raises Broken."""
    environment = {**environment, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Broken(f"exit code {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
