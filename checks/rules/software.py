"""The environment that training runs in: there, and the same everywhere."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator

from checks.compare import compare, each, majority
from checks.facts import (
    NOT_ASKED,
    Fleet,
    GitState,
    LaunchNeeds,
    Maybe,
    NodeFacts,
    PythonEnv,
    Unknown,
    or_none,
    then,
)
from checks.finding import Finding, Lacks, fail, need, passed, skip, unknown, warn
from checks.profile import Profile
from checks.registry import check


@check("software.interpreter_exists", "launch")
def interpreter_exists(node: NodeFacts, limits: Profile, launch: LaunchNeeds) -> Finding:
    """The interpreter that the launch will start is on the node, runs, and is new enough.

    Bad: FAIL if it is missing, does not run, or is older than 3.10
    How: runs it and asks for its versions
    Fix: put the environment on the node under that path, or name another with --python
    """
    path, env = named_environment(launch), node.software
    if node.interpreter == "missing":
        return fail(f"{path} is not there")
    if node.interpreter == "broken":
        reason = env.reason if isinstance(env, Unknown) else ""
        return fail(f"{path} does not run: {reason}", fix=f"{path} -c 'import json'")
    env = need(env, f"{path}: ", unknown)
    if _numbers(env.version) < limits.python_min:
        least = ".".join(map(str, limits.python_min))
        return fail(f"{path} is Python {env.version}, training needs {least}")
    return passed(f"{path} runs", env.version)


@check("software.python_equal", "fleet")
def python_equal(fleet: Fleet, expected: str | None) -> Iterable[Finding]:
    """The same Python: pickles and wheels depend on the minor number, the rest is a warning.

    Bad: WARN if the patch number differs, FAIL if the minor one does
    How: sys.version_info of the interpreter
    Fix: make the environments equal: one shared folder, or the same lock file on each node
    """
    versions = [*(env.version for env in _environments(fleet).values()), expected]
    minors = {_numbers(version) for version in versions if version}
    bad = fail if len(minors) > 1 else warn
    return _same(fleet, "Python", lambda env: env.version, bad=bad, expected=expected)


@check("software.torch_equal", "fleet")
def torch_equal(fleet: Fleet, expected: str | None) -> Iterable[Finding]:
    """The same torch with the same CUDA: ranks of two versions hang or differ silently.

    Bad: FAIL if version or CUDA differ from the majority's
    How: torch's dist-info and version.py, without importing it
    Fix: make the environments equal: one shared folder, or the same lock file on each node
    """
    return _same(fleet, "torch", _torch_of, missing=fail, expected=expected)


@check("software.colossalai_equal", "fleet")
def colossalai_equal(fleet: Fleet, expected: str | None) -> Iterable[Finding]:
    """The same ColossalAI; without it only the engine of torch itself can run.

    Bad: WARN if it is nowhere, FAIL if it differs
    How: its dist-info
    Fix: make the environments equal: one shared folder, or the same lock file on each node
    """
    name = "colossalai"
    return _same(fleet, name, lambda env: env.packages.get(name), missing=warn, expected=expected)


@check("software.av_known_bad", "launch")
def av_known_bad(node: NodeFacts, limits: Profile, launch: LaunchNeeds) -> Finding:
    """PyAV can read clips for the trainer, and is no version whose decoder threads freeze.

    Bad: WARN for PyAV 14.0 to 14.2, below 17 and where it is missing
    How: its dist-info
    Fix: pip install 'av>=17'
    """
    named_environment(launch)
    env = node.software
    if isinstance(env, Unknown) and node.lacks_interpreter:
        return skip("no interpreter")
    env = need(env, lacks=unknown)
    version = env.packages.get("av")
    if version is None:
        return warn("PyAV is not installed: no video can be read")
    text = ""
    if limits.av_bad_from <= _numbers(version) <= limits.av_bad_to:
        text = f"PyAV {version} freezes in the slice threads of HEVC"
    elif _numbers(version) < limits.av_min:
        text = f"PyAV {version} is too old to read clips for the trainer"
    return warn(text, version, "17 or newer") if text else passed(f"PyAV {version}", version)


@check("software.nccl_equal", "fleet")
def nccl_equal(fleet: Fleet, expected: str | None) -> Iterable[Finding]:
    """The same NCCL: two versions hang in their first collective, without a message.

    Bad: FAIL if it is not the majority's
    How: dist-info of nvidia-nccl-cu*
    Fix: make the environments equal: one shared folder, or the same lock file on each node
    """
    return _same(fleet, "NCCL", _nccl_of, expected=expected)


def _nccl_of(env: PythonEnv) -> str:
    names = sorted(name for name in env.installed if name.startswith("nvidia-nccl"))
    return ", ".join(f"{name} {env.installed[name]}" for name in names)


@check("software.packages_equal", "fleet")
def packages_equal(fleet: Fleet, expected: str | None) -> Iterable[Finding]:
    """The same packages down to the last one.

    Bad: WARN if any package or version differs
    How: hash over the sorted name==version of all distributions
    Fix: make the environments equal: one shared folder, or the same lock file on each node
    """
    envs = {name: env for name, env in _environments(fleet).items() if env.installed}
    hashes = {name: packages_hash(env) for name, env in envs.items()}
    most = expected or majority(hashes.values())
    model = next((envs[name] for name, value in hashes.items() if value == most), None)

    def judge(node: NodeFacts) -> Finding:
        if isinstance(node.software, Unknown) and node.lacks_interpreter:
            return skip("no interpreter")
        env = need(node.software, "its packages: ", unknown)
        if not env.installed:
            return skip("no package is installed there")
        mine = hashes[node.name]
        if mine == most or len(hashes) == 1:
            return passed("packages as the others", mine, source="majority")
        if model is None:
            return warn("the packages differ, and no two nodes agree", mine)
        return warn(f"packages differ: {_difference(env, model)}", mine, most, source="majority")

    return each(fleet, judge)


def packages_hash(env: PythonEnv) -> str:
    """Twelve hex digits of a hash of all packages of an environment."""
    text = "\n".join(f"{name}=={version}" for name, version in sorted(env.installed.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _difference(mine: PythonEnv, others: PythonEnv) -> str:
    a, b = mine.installed, others.installed
    names = sorted(name for name in {*a, *b} if a.get(name) != b.get(name))
    words = (f"{n} {a.get(n, 'missing')} (others {b.get(n, 'without')})" for n in names[:3])
    return ", ".join(words) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@check("software.git_dirty", "fleet")
def git_dirty(fleet: Fleet) -> Iterator[Finding]:
    """No change that no commit knows: the run could not be repeated.

    Bad: WARN if files are changed and not committed
    How: git status --porcelain in the folder that the launch starts in
    Fix: git diff; commit or git stash
    """

    def judge(node: NodeFacts) -> Finding:
        git = working_copy(node)
        if git == NOT_ASKED or git is None:
            return skip("no working copy")
        changed = need(git).changed
        if not changed:
            return passed("nothing is changed")
        count, shown = len(changed), ", ".join(changed[:2]) + (", ..." if len(changed) > 2 else "")
        return warn(f"{count} changed file{'s' * (count != 1)}: {shown}", count, 0)

    return each(fleet, judge)


def working_copy(node: NodeFacts) -> Maybe[GitState] | None:
    """None without git or a repository: an installed package needs none."""
    git = node.git
    if isinstance(git, GitState):
        return git
    absent = ("not a git repository", "No such file", "cannot change to")
    no_tool = git.reason.startswith("not found: ")
    return None if no_tool or any(word in git.reason for word in absent) else git


def _same(
    fleet: Fleet,
    what: str,
    value: Callable[[PythonEnv], str | None],
    *,
    bad: Callable[..., Finding] = fail,
    missing: Callable[..., Finding] | None = None,
    expected: str | None = None,
) -> Iterable[Finding]:
    """Findings about a value of all environments; `missing` is for one that none of them has.

    Nodes whose interpreter is a finding already are left out.
    """
    envs = _environments(fleet)
    is_anywhere = any(map(value, envs.values()))
    if missing and envs and not is_anywhere:
        return [missing(f"{what} is not installed", nodes=tuple(envs), fix=f"pip install {what}")]
    nothing = "not installed" if is_anywhere else None

    def read(node: NodeFacts) -> Maybe[str | None] | None:
        if node.lacks_interpreter:
            return None
        return then(node.software, lambda env: value(env) or nothing)

    return compare(fleet, read, what, bad=bad, expected=expected)


def _torch_of(env: PythonEnv) -> str | None:
    version, cuda = env.packages.get("torch"), or_none(env.torch_cuda)
    return f"{version} (CUDA {cuda})" if version and cuda and "+" not in version else version


def _environments(fleet: Fleet) -> dict[str, PythonEnv]:
    """By node name; ends a rule with SKIP where there is nothing to compare."""
    if fleet.launch is None:
        raise Lacks(skip("nothing to launch was named"))
    named_environment(fleet.launch)
    if all(node.lacks_interpreter for node in fleet.reached):
        raise Lacks(skip("no node has a working interpreter"))
    nodes = fleet.reached
    return {node.name: node.software for node in nodes if isinstance(node.software, PythonEnv)}


def named_environment(launch: LaunchNeeds) -> str:
    """The training interpreter's path; ends a rule with SKIP where nobody has named one."""
    if launch.python is None:
        raise Lacks(skip("no training environment was named (--launch or --python)"))
    return launch.python


def _numbers(version: str) -> tuple[int, int]:
    """Major and minor of a version text; what cannot be read counts as very old."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)
