"""The environment that training runs in: there, and the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from checks.facts import Fleet, NodeFacts, PythonEnv, Unknown
from checks.finding import Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.runner import check, compare

_SAME_ENV = "make the environments equal: one shared folder, or the same lock file on each node"


@check("software.interpreter_exists", scope="launch")
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


@check("software.python_equal", scope="fleet")
def python_equal(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """The same Python: pickles and wheels depend on the minor number, the rest is a warning."""
    if (reason := _no_software(fleet)) is not None:
        yield skip(reason)
        return
    minors = {_numbers(env.version) for env in _environments(fleet)}
    bad: Callable[..., Finding] = fail if len(minors) > 1 else warn
    yield from compare(fleet, _read(lambda env: env.version), "Python", fix=_SAME_ENV, bad=bad)


@check("software.torch_equal", scope="fleet")
def torch_equal(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """The same torch with the same CUDA: ranks of two versions hang or differ silently."""
    yield from _package(fleet, "torch", missing=fail)


@check("software.colossalai_equal", scope="fleet")
def colossalai_equal(fleet: Fleet, _limits: Profile) -> Iterator[Finding]:
    """The same ColossalAI; without it only the engine of torch itself can run."""
    yield from _package(fleet, "colossalai", missing=warn)


@check("software.av_known_bad", scope="launch")
def av_known_bad(node: NodeFacts, limits: Profile, _fleet: Fleet) -> Iterator[Finding]:
    """PyAV is none of the versions whose decoder threads freeze."""
    env = node.software
    if isinstance(env, Unknown):
        yield unknown(env.reason) if node.interpreter == "unknown" else skip("no interpreter")
        return
    version = env.packages.get("av")
    if version is None:
        yield warn("PyAV is not installed: no video can be read", fix="pip install av")
    elif limits.av_bad_from <= _numbers(version) <= limits.av_bad_to:
        yield warn(
            f"PyAV {version} freezes in the slice threads of HEVC",
            value=version, expected="15 or newer", fix="pip install 'av>=15'",
        )  # fmt: skip
    else:
        yield passed(f"PyAV {version}", value=version)


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
