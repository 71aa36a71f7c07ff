"""The environment that training runs in: there, and the same everywhere."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from checks.facts import NOT_ASKED, Fleet, GitState, NodeFacts, PythonEnv, Unknown
from checks.finding import Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.runner import check, compare, majority

_SAME_ENV = "make the environments equal: one shared folder, or the same lock file on each node"


@check(
    "software.interpreter_exists",
    scope="launch",
    bad="FAIL if it is missing, does not run, or is older than 3.10",
    how="runs it and asks for its versions",
    fix="put the environment under the same path, or --python PATH",
)
def interpreter_exists(node: NodeFacts, limits: Profile, fleet: Fleet) -> Iterator[Finding]:
    """The interpreter that the launch will start is on the node, runs, and is new enough."""
    assert fleet.launch is not None
    path = fleet.launch.python
    reason = node.software.reason if isinstance(node.software, Unknown) else ""
    if node.interpreter == "missing":
        yield fail(
            f"{path} is not there",
            fix="put the environment on the node under that path, or name another with --python",
        )
    elif node.interpreter == "broken":
        yield fail(f"{path} does not run: {reason}", fix=f"{path} -c 'import json'")
    elif isinstance(node.software, Unknown):
        yield unknown(f"{path}: {reason}")
    elif _numbers(node.software.version) < limits.python_min:
        need = ".".join(map(str, limits.python_min))
        yield fail(f"{path} is Python {node.software.version}, training needs {need}")
    else:
        yield passed(f"{path} runs", value=node.software.version)


@check(
    "software.python_equal",
    scope="fleet",
    bad="WARN if the patch number differs, FAIL if the minor one does",
    how="sys.version_info of the interpreter",
    fix="one shared environment, or one lock file",
)
def python_equal(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """The same Python: pickles and wheels depend on the minor number, the rest is a warning."""
    if (reason := _no_software(fleet)) is not None:
        yield skip(reason)
        return
    minors = {_numbers(env.version) for env in _environments(fleet)}
    bad: Callable[..., Finding] = fail if len(minors) > 1 else warn
    yield from compare(fleet, _read(lambda env: env.version), "Python", fix=_SAME_ENV, bad=bad)


@check(
    "software.torch_equal",
    scope="fleet",
    bad="FAIL if version or CUDA differ from the majority's",
    how="torch's dist-info and version.py, without importing it",
    fix="one shared environment, or one lock file",
)
def torch_equal(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """The same torch with the same CUDA: ranks of two versions hang or differ silently."""
    yield from _package(fleet, "torch", missing=fail)


@check(
    "software.colossalai_equal",
    scope="fleet",
    bad="WARN if it is nowhere, FAIL if it differs",
    how="its dist-info",
    fix="pip install colossalai, the same version everywhere",
)
def colossalai_equal(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """The same ColossalAI; without it only the engine of torch itself can run."""
    yield from _package(fleet, "colossalai", missing=warn)


@check(
    "software.av_known_bad",
    scope="launch",
    bad="WARN for PyAV 14.0 to 14.2, below 17 and where it is missing",
    how="its dist-info",
    fix="pip install 'av>=17'",
)
def av_known_bad(node: NodeFacts, limits: Profile, _fleet: Fleet) -> Iterator[Finding]:
    """PyAV can read clips for the trainer, and is no version whose decoder threads freeze."""
    env = node.software
    if isinstance(env, Unknown):
        gone = node.interpreter in ("missing", "broken")
        yield skip("no interpreter") if gone else unknown(env.reason)
        return
    version = env.packages.get("av")
    if version is None:
        yield warn("PyAV is not installed: no video can be read", fix="pip install av")
    elif limits.av_bad_from <= _numbers(version) <= limits.av_bad_to:
        yield warn(
            f"PyAV {version} freezes in the slice threads of HEVC",
            value=version,
            expected="17 or newer",
            fix="pip install 'av>=17'",
        )
    elif _numbers(version) < limits.av_min:
        yield warn(
            f"PyAV {version} is too old to read clips for the trainer",
            value=version,
            expected="17 or newer",
            fix="pip install 'av>=17'",
        )
    else:
        yield passed(f"PyAV {version}", value=version)


@check(
    "software.nccl_equal",
    scope="fleet",
    bad="FAIL if it is not the majority's",
    how="dist-info of nvidia-nccl-cu*",
    fix="one shared environment, or one lock file",
)
def nccl_equal(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The same NCCL: two versions hang in their first collective, without a word."""

    def read(node: NodeFacts) -> Any:
        env = node.software
        if isinstance(env, Unknown):
            return None if node.interpreter in ("missing", "broken") else env
        return _nccl_of(env) or nowhere

    nowhere = "not installed" if any(map(_nccl_of, _environments(fleet))) else None
    if (reason := _no_software(fleet)) is not None:
        yield skip(reason)
        return
    expected = limits.expected.get("software.nccl_equal")
    yield from compare(fleet, read, "NCCL", fix=_SAME_ENV, expected=expected)


def _nccl_of(env: PythonEnv) -> str:
    names = sorted(name for name in env.installed if name.startswith("nvidia-nccl"))
    return ", ".join(f"{name} {env.installed[name]}" for name in names)


@check(
    "software.packages_equal",
    scope="fleet",
    bad="WARN if any package or version differs",
    how="hash over the sorted name==version of all distributions",
    fix="the printed difference; one shared environment, or one lock file",
)
def packages_equal(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The same packages down to the last one."""
    if (reason := _no_software(fleet)) is not None:
        yield skip(reason)
        return
    envs = {
        node.name: node.software
        for node in fleet.reached
        if isinstance(node.software, PythonEnv) and node.software.installed
    }
    hashes = {name: packages_hash(env) for name, env in envs.items()}
    most = limits.expected.get("software.packages_equal") or majority(hashes).value
    model = next((envs[name] for name, value in hashes.items() if value == most), None)
    for node in fleet.reached:
        if isinstance(node.software, PythonEnv) and not node.software.installed:
            yield skip("no package is installed there", nodes=(node.name,))
        elif isinstance(node.software, Unknown) and node.interpreter in ("missing", "broken"):
            yield skip("no interpreter", nodes=(node.name,))
        elif isinstance(node.software, Unknown):
            yield unknown(f"its packages: {node.software.reason}", nodes=(node.name,))
    for name, value in hashes.items():
        if value == most or len(set(hashes.values())) == 1 == len(hashes):
            yield passed("packages as the others", nodes=(name,), value=value, source="majority")
        elif model is None:
            yield warn(
                "the packages differ, and no two nodes agree",
                nodes=(name,),
                value=value,
                fix=_SAME_ENV,
            )
        else:
            yield warn(
                f"packages differ: {_difference(envs[name], model)}",
                nodes=(name,),
                value=value,
                expected=most,
                source="majority",
                fix=_SAME_ENV,
            )


def packages_hash(env: PythonEnv) -> str:
    """Twelve hex digits that stand for all packages of an environment."""
    text = "\n".join(f"{name}=={version}" for name, version in sorted(env.installed.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _difference(mine: PythonEnv, others: PythonEnv) -> str:
    names = sorted(
        name
        for name in {*mine.installed, *others.installed}
        if mine.installed.get(name) != others.installed.get(name)
    )
    words = [
        f"{name} {mine.installed.get(name, 'missing')} (others "
        f"{others.installed.get(name, 'without')})"
        for name in names[:3]
    ]
    return ", ".join(words) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@check(
    "software.git_commit",
    scope="fleet",
    bad="FAIL if it is not the majority's",
    how="git rev-parse HEAD in the folder that the launch starts in",
    fix="git -C DIR checkout COMMIT on that node, or one shared folder",
)
def git_commit(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """The same commit of the code."""
    yield from compare(
        fleet,
        _of_git(lambda git: git.commit[:12]),
        "commit",
        fix="git checkout the others' commit there, or one shared folder",
        expected=limits.expected.get("software.git_commit"),
    )


@check(
    "software.git_dirty",
    scope="fleet",
    bad="WARN if files are changed and not committed",
    how="git status --porcelain in the folder that the launch starts in",
    fix="git stash, or commit",
)
def git_dirty(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """No change that no commit knows: the run could not be repeated."""
    read = _of_git(lambda git: git)
    for node in fleet.reached:
        git = read(node)
        if git == NOT_ASKED or git is None:
            yield skip("no working copy", nodes=(node.name,))
        elif isinstance(git, Unknown):
            yield unknown(git.reason, nodes=(node.name,))
        elif git.changed:
            count = len(git.changed)
            shown = ", ".join(git.changed[:2]) + (", ..." if count > 2 else "")
            yield warn(
                f"{count} changed file{'s' * (count != 1)}: {shown}",
                nodes=(node.name,),
                value=str(count),
                expected="0",
                fix="git diff; commit or git stash",
            )
        else:
            yield passed("nothing is changed", nodes=(node.name,))


def _of_git(value: Callable[[GitState], Any]) -> Callable[[NodeFacts], Any]:
    """Reader that leaves out nodes without git or a repository: an installed package needs none."""

    def read(node: NodeFacts) -> Any:
        git = node.git
        if isinstance(git, GitState):
            return value(git)
        absent = ("not a git repository", "No such file", "cannot change to")
        no_tool = git.reason.startswith("not found: ")
        return None if no_tool or any(word in git.reason for word in absent) else git

    return read


def _package(fleet: Fleet, name: str, missing: Callable[..., Finding]) -> Iterator[Finding]:
    if (reason := _no_software(fleet)) is not None:
        yield skip(reason)
        return
    if all(env.packages.get(name) is None for env in _environments(fleet)) and _environments(fleet):
        nodes = tuple(node.name for node in fleet.reached if isinstance(node.software, PythonEnv))
        yield missing(f"{name} is not installed", nodes=nodes, fix=f"pip install {name}")
        return
    yield from compare(fleet, _read(lambda env: _version(env, name)), name, fix=_SAME_ENV)


def _version(env: PythonEnv, name: str) -> str:
    version = env.packages.get(name) or "not installed"
    cuda = env.torch_cuda if name == "torch" else None
    return f"{version} (CUDA {cuda})" if cuda and "+" not in version else version


def _no_software(fleet: Fleet) -> str | None:
    """Why there is nothing to compare, if so."""
    if fleet.launch is None:
        return "nothing to launch was named"
    if all(node.interpreter in ("missing", "broken") for node in fleet.reached):
        return "no node has a working interpreter"
    return None


def _environments(fleet: Fleet) -> list[PythonEnv]:
    return [node.software for node in fleet.reached if isinstance(node.software, PythonEnv)]


def _read(value: Callable[[PythonEnv], str]) -> Callable[[NodeFacts], Any]:
    """Reader for `compare` that leaves out nodes whose interpreter is a finding already."""

    def read(node: NodeFacts) -> Any:
        if node.interpreter in ("missing", "broken"):
            return None
        return node.software if isinstance(node.software, Unknown) else value(node.software)

    return read


def _numbers(version: str) -> tuple[int, int]:
    """Major and minor of a version text; what cannot be read counts as very old."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)
