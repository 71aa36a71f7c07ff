"""No text of a node or of a run freezes the head: every regular expression takes linear time."""

from __future__ import annotations

import pytest

from tests.patterns import QUICK, WHOLE, Found, collect, slowest

# Patterns that are known at run time only, by module: where they come from.
AT_RUN_TIME = {
    "checks/parsers/kernel_log.py": "its own table",
    "clusterctl/launch/causes/signatures.py": "its own table",
    "clusterctl/payload/collect/kernel_log.py": "INTERESTING of checks.parsers.kernel_log",
    "clusterctl/payload/secrets/mask.py": "two patterns of its own",
    "clusterctl/payload/watching/host.py": "400 characters of the driver's version",
    "trainer/runlog/figures.py": "its own table",
    "clusterctl/output.py": "names of this command's own nodes, escaped",
    "clusterctl/why/changes.py": "paths of runs, escaped",
    "clusterctl/commands/kill.py": "--match",
    "clusterctl/payload/jobs/find_job.py": "--match",
    "clusterctl/stacks/wait_sites.py": "its own table, and --sites",
    "clusterctl/exclude/entries.py": "a key of the user's exclude.toml",
}


@pytest.mark.long
def test_every_pattern_is_found() -> None:
    patterns, unknown = collect()
    assert len(patterns) > 200
    new = {one.partition(":")[0] for one in unknown} - AT_RUN_TIME.keys()
    assert not new


@pytest.mark.long
@pytest.mark.parametrize(
    ("pattern", "methods"),
    [(r"(a+)+$", "match"), (r"\d+ms", "search"), (r"EMA\b.* (?:is|are) nan", "search"),
     (r"^[ \t]*(\S+?):*[ \t]+(\d+)[ \t]+kB", "findall"), (r"x=(.*),y=(.*),z=(.*);", "match")],
)  # fmt: skip
def test_slow_pattern_is_noticed(pattern: str, methods: str) -> None:
    assert slowest(
        Found("here", pattern, 0, frozenset({methods})), ((18, 0.003), *QUICK, (50_000, 0.2))
    )


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_pattern_takes_more_than_linear_time() -> None:
    assert [slow for one in collect()[0] if (slow := slowest(one, QUICK))] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_pattern_takes_long_for_100_kB() -> None:
    assert [slow for one in collect()[0] if (slow := slowest(one, WHOLE))] == []
