"""Nodes for tests: `lab` (namespaces, needs root), `loopback` (no needs), `cluster` (the best there is)."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from clusterctl.transport.loopback.nodes import LoopbackCluster
from tests import watchdog
from tests.lab import Lab, why_not
from tests.rank_variables import OF_A_RANK

Cluster = Lab | LoopbackCluster

# What takes longest computes. Begun last, one of these files would leave the other workers idle; begun
# all at once, they would share two cores. (`make test` keeps the order of the items; xdist's own begins
# with the files of most tests.)
LONGEST = (
    "clusterctl/test_demo",
    "trainer/test_loop",
    "bench/test_tiny",
    "trainer/test_ends",
    "gpu/test_gpu_scripts",
    "trainer/data/tools/test_odd_tables",
    "trainer/test_failing_calls",
    "test_venv",
    "trainer/data/features/test_encode",
)
AS_LONG_AS = 10  # files


# A deadline for each example says how busy the machine is, not whether the code is right.
# Examples are drawn anew in each run; a campaign draws more: --hypothesis-profile campaign.
hypothesis.settings.register_profile("campaign", deadline=None, max_examples=500)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=30)
hypothesis.settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "of the tests marked long: all (default), none, or part K of N, counted from 0"
    parser.addoption("--long", default="all", metavar="K/N", help=what)


def pytest_configure(config: pytest.Config) -> None:
    """Signals reach what tests start: a shell without job control and nohup begin programs that ignore them."""
    config.pluginmanager.register(watchdog)
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """What is loaded now stays to the end: a collection of garbage need not look at it each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out_long(config, items)
    deal(items)


def leave_out_long(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = config.getoption("--long")
    if asked == "all":
        return
    part, _, parts = asked.partition("/")
    if asked != "none" and not (part.isdigit() and parts.isdigit() and int(part) < int(parts)):
        raise pytest.UsageError(f"--long {asked}: it is all, none, or K/N with K less than N")

    def is_taken(item: pytest.Item) -> bool:
        if item.get_closest_marker("long") is None:
            return True
        file = item.nodeid.partition("::")[0]  # tests of a file may share what takes long
        return asked != "none" and zlib.crc32(file.encode()) % int(parts) == int(part)

    config.hook.pytest_deselected(items=[item for item in items if not is_taken(item)])
    items[:] = [item for item in items if is_taken(item)]


def deal(items: list[pytest.Item]) -> None:
    """Files that compute, the longest first, are dealt evenly among those that mostly wait."""
    here = Path(__file__).parent
    paths = list(dict.fromkeys(item.path for item in items))
    longest = [path for name in LONGEST if (path := here / f"{name}.py") in paths]
    rest = [path for path in paths if path not in longest]
    computing = longest + [path for path in rest if here / "trainer" in path.parents]
    waiting = [path for path in rest if here / "trainer" not in path.parents]
    places: dict[Path, float] = {}
    for group in (computing, waiting):
        sizes = [AS_LONG_AS if path in longest else 1 for path in group]
        places |= {path: sum(sizes[:n]) / sum(sizes) for n, path in enumerate(group)}
    items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """What a test starts later would take itself for a rank."""
    left = yield
    names = [name for name in OF_A_RANK if os.environ.pop(name, None) is not None]
    assert not names, f"it leaves {', '.join(names)} in the environment"
    return left


def pytest_report_header() -> str:
    reason = why_not()
    if reason is None:
        return "nodes: lab (namespaces with their own sshd)"
    return f"nodes: loopback only, the tests marked lab are skipped: {reason}"


def _factory(make: Callable[..., Cluster]) -> Iterator[Callable[..., Cluster]]:
    """A function that starts clusters; all are stopped when the fixture ends, however it ends."""
    with contextlib.ExitStack() as stack:
        yield lambda count=2, **options: stack.enter_context(make(count, **options))


def _make_lab(directory: Path) -> Callable[..., Lab]:
    numbers = iter(range(1000))
    return lambda count, **options: Lab(count, directory / f"lab{next(numbers)}", **options)


def _make_loopback(directory: Path) -> Callable[..., LoopbackCluster]:
    numbers = iter(range(1000))

    def make(count: int, env: dict[str, str] | None = None) -> LoopbackCluster:
        names = [f"node-{index + 1}" for index in range(count)]
        return LoopbackCluster(names, directory / f"loopback{next(numbers)}", env)

    return make


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """`lab(4)` gives four nodes; skipped where namespaces cannot be made."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"lab nodes: {reason}")
    yield from _factory(_make_lab(tmp_path))  # type: ignore[misc]


@pytest.fixture(scope="module")
def module_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Lab]]:
    """As `lab`, shared by the tests of a file: they must leave the nodes as they found them."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"lab nodes: {reason}")
    yield from _factory(_make_lab(tmp_path_factory.mktemp("lab")))  # type: ignore[misc]


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[Callable[..., LoopbackCluster]]:
    """`loopback(2, env={...})` gives ssh servers on 127.0.0.1 that run as this user."""
    yield from _factory(_make_loopback(tmp_path))  # type: ignore[misc]


@pytest.fixture(scope="module")
def module_loopback(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., LoopbackCluster]]:
    """As `loopback`, shared by the tests of a file."""
    yield from _factory(_make_loopback(tmp_path_factory.mktemp("loopback")))  # type: ignore[misc]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """`cluster(2)`: lab nodes where they can be had, else loopback nodes (see the test header)."""
    make = _make_lab(tmp_path) if why_not() is None else _make_loopback(tmp_path)
    yield from _factory(make)


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The developer's ssh agent and what preflight remembers take no part in tests."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
