"""`bench`: launches over two nodes that the tests of a file share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clusterctl.launch.harness import Bench, tagged
from tests.lab import why_not


@pytest.fixture(scope="module")
def shared_cluster(request: pytest.FixtureRequest):
    """Two lab nodes, or loopback nodes where there can be no lab."""
    make = request.getfixturevalue("module_lab" if why_not() is None else "module_loopback")
    return make(2)


@pytest.fixture
def bench(shared_cluster, request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from _bench(shared_cluster, request.node.name)


@pytest.fixture
def bench_on(request: pytest.FixtureRequest) -> Iterator[Callable[..., Bench]]:
    """`bench_on(cluster)`: a bench for nodes of the test's own."""
    made: list[Iterator[Bench]] = []

    def make(cluster) -> Bench:
        made.append(_bench(cluster, request.node.name))
        return next(made[-1])

    yield make
    for bench in made:
        next(bench, None)


def _bench(cluster, name: str) -> Iterator[Bench]:
    # Beside the hostfile: the one folder that head and nodes share.
    directory = Path(cluster.hostfile).parent / f"bench-{abs(hash(name)) % 10**8}"
    directory.mkdir()
    bench = Bench(cluster, directory)
    yield bench
    if bench.last is not None:
        assert tagged(bench.last.run_id) == []
