"""Every Python that the README promises: `python -m tests.pythons [--only 3.12] [--whole 3.13|all] [--long K/N] [--skip-demo]`.

One of them, another one for another commit, gets what both README commands do: all tests, and a short
demo; as root, the demo runs as an ordinary user in a home with a space in its path. It gets mypy too where
it is the oldest or the newest, and the newest the tests of video with the newest PyAV. The others get the
environment from the lock, the import of every module, and the tests of what changes between Pythons. The
Python of .venv, whose tests `make test` runs all, only gets the demo here. Two are tried at once, and the
environments of the next are made meanwhile. The last line names every version and what broke. Exit code 1
if one did, 3 if one could not be tried.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.sources import ROOT, copy_sources

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
OWN = "{}.{}".format(*sys.version_info)
NOBODY = 65534
LIMIT_S = 900  # of one program
WHOLE_LIMIT_S = 1500  # of all tests, beside the short ones of another version
AT_ONCE = 2  # versions: one computes while the other waits for its environment, processes, networks
WORKERS = 4  # of all tests; those of the other versions run beside them in one process
TESTS = (
    "tests/test_imports.py",
    "tests/clusterctl/test_cli.py",
    "tests/clusterctl/remote/test_payload.py",
    "tests/trainer/config/test_load.py",
    "tests/trainer/test_command_line.py",
    "tests/trainer/data/video/test_decode.py",
    "tests/trainer/data/video/test_helper_process.py",
)
ENDS = (VERSIONS[0], VERSIONS[-1])

# The lock has one PyAV for all Pythons; who installs without it gets a newer one from Python 3.12 on.
NEWEST_PYAV, TAKES_NEWEST_PYAV = "av==19.0.2", ENDS[1]
OF_VIDEO = ["tests/trainer/data/video", "tests/trainer/data/tools/test_probe_check.py"]


class Broken(Exception):
    """A step failed; the text names the step."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=VERSIONS, metavar="VERSION")
    choices = ("all", "none", *VERSIONS)
    what = "all tests on this one; default another one for each commit"
    parser.add_argument("--whole", choices=choices, metavar="VERSION", help=what)
    what = "of the tests marked long, where all tests run: all (default), none, or part K of N"
    parser.add_argument("--long", default="all", metavar="K/N", help=what)
    parser.add_argument("--skip-demo", action="store_true")
    args = parser.parse_args()
    whole = VERSIONS if args.whole == "all" else (args.whole or in_turn(),)
    versions = [version for version in VERSIONS if version in (args.only or VERSIONS)]
    with ThreadPoolExecutor(1) as maker, ThreadPoolExecutor(AT_ONCE) as tried:
        made = {
            version: maker.submit(make_environment, base, environment_of(version))
            for version in versions
            if version != OWN and (base := interpreter(version)) is not None
        }
        # The environment of .venv is there; what takes longest begins before the others.
        versions.sort(key=lambda version: (version != OWN, version not in whole))
        trials = [
            Trial(version, made.get(version), version in whole, args.long, args.skip_demo)
            for version in versions
        ]
        results = {one.version: tried.submit(one.result) for one in trials}
    words = ", ".join(f"{version} {results[version].result()}" for version in sorted(results))
    for one in trials:
        print("".join(f"Python {one.version}: {line}\n" for line in one.last_words), end="")
    print(f"Pythons: {words}", flush=True)
    if "broken" in words:
        return 1
    return 3 if "not found" in words else 0


class Trial:
    """One version. What its programs print is shown when a step fails."""

    def __init__(
        self, version: str, made: Future[None] | None, is_whole: bool, long: str, skip_demo: bool
    ) -> None:
        self.version, self._is_whole, self._long = version, is_whole, long
        self._made = made
        self._demo = [] if skip_demo else [("demo", self._run_demo)]
        self._output = ""  # of the step
        self.last_words: list[str] = []  # of the step that failed, for a log that is cut

    def result(self) -> str:
        """Returns ok, not found, or broken with the step."""
        for name, step in self._steps():
            began = time.monotonic()
            self._output = ""
            self._say(name)
            try:
                step()
            except (Broken, OSError, subprocess.SubprocessError) as error:
                self._say(f"{name} failed: {error}", self._output)
                lines = self._output.splitlines()
                told = [
                    line for line in lines if line.startswith(("FAILED", "ERROR", "INTERNALERROR"))
                ]
                self.last_words = [*told[-10:], *lines[-5:], f"{name} failed: {error}"]
                return f"broken ({name})"
            last = self._output.strip().rpartition("\n")[2]
            counts = f": {last}" if name == "tests" else ""
            self._say(f"{name} took {time.monotonic() - began:.0f} s{counts}")
        return "ok" if self._made is not None or self.version == OWN else "not found"

    def _steps(self) -> list[tuple[str, Callable[[], None]]]:
        if self.version == OWN:
            return self._demo
        if self._made is None:
            return []
        is_newest = self._is_whole and self.version == TAKES_NEWEST_PYAV
        return [
            ("environment", self._made.result),
            *([("lint", self._run_lint)] if self._is_whole and self.version in ENDS else []),
            ("tests", self._run_tests),
            *([("newest PyAV", self._run_newest_pyav)] if is_newest else []),
            *(self._demo if self._is_whole else []),
        ]

    def _run_lint(self) -> None:
        self._run([self._python, "-m", "mypy", "--cache-dir", str(self._folder / ".mypy")])

    def _run_tests(self) -> None:
        """As `make test`: what failed beside other tests runs once more, alone."""
        tests = ("tests",) if self._is_whole else TESTS
        pytest = [self._python, "-m", "pytest", "-q", "-o", f"cache_dir={self._folder}/.pytest"]
        beside = ["-n", str(WORKERS), "--dist", "loadfile", "--no-loadscope-reorder"]
        beside += ["--max-worker-restart", "0"]
        try:
            self._run([*pytest, *(beside if self._is_whole else []), "--long", self._long, *tests])
        except Broken:
            self._say("failed beside other tests; once more, alone:", self._output)
            alone = ["--last-failed", "--last-failed-no-failures", "none", "--maxfail", "6"]
            self._run([*pytest, *alone, *tests])

    def _run_newest_pyav(self) -> None:
        """Beside the environment, not in it."""
        folder = self._folder / "newest-pyav"
        install = [self._python, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
        self._run([*install, "--target", str(folder), NEWEST_PYAV])
        tests = [self._python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *OF_VIDEO]
        self._run(tests, PYTHONPATH=str(folder))

    def _run_demo(self) -> None:
        """As somebody else where we are root, from a copy of the sources in their home."""
        with home_with_a_space() as home:
            sources = home / "clusterctl"
            copy_sources(sources)
            demo = [self._python, "-m", "clusterctl", "demo", "--steps", "6", "--no-score"]
            if os.geteuid() == 0:
                for path in [home, *home.rglob("*")]:
                    os.lchown(path, NOBODY, NOBODY)
                base = subprocess.run(
                    [self._python, "-c", "import sys; print(sys.base_prefix)"],
                    capture_output=True, text=True, check=True,
                ).stdout.strip()  # fmt: skip
                paths = [base, str(ROOT)]
                apart = ["unshare", "--mount", "--propagation", "private", sys.executable]
                demo = [*apart, str(ROOT / "tests/as_user.py"), str(NOBODY), *paths, "--", *demo]
            self._run(demo, cwd=sources, HOME=str(home))

    @property
    def _python(self) -> str:
        return sys.executable if self.version == OWN else str(self._folder / "bin" / "python")

    @property
    def _folder(self) -> Path:
        return environment_of(self.version)

    def _run(self, command: list[str], cwd: Path = ROOT, **environment: str) -> None:
        """Its output is kept, and bytecode: hundreds of processes import torch. Raises Broken."""
        environment = {**environment, "PYTHONDONTWRITEBYTECODE": ""}
        try:
            done = subprocess.run(
                command, cwd=cwd, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                timeout=WHOLE_LIMIT_S if self._is_whole else LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            self._output += (error.stdout or b"").decode("utf-8", "replace")
            raise
        self._output += done.stdout
        if done.returncode:
            raise Broken(f"exit code {done.returncode}")

    def _say(self, text: str, output: str = "") -> None:
        print(f"Python {self.version}: {text}\n{output}", end="", flush=True)


def in_turn() -> str:
    """The version that gets all tests: by the commit, so that each has its turn."""
    others = [version for version in VERSIONS if version != OWN]
    asked = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return others[int(done.stdout[:8], 16) % len(others)] if done.returncode == 0 else others[-1]


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


if __name__ == "__main__":
    sys.exit(main())
