"""time.sync of nodes without chronyd: ntpd's sources, and what the kernel says."""

from __future__ import annotations

from typing import Any

import pytest

from checks.facts import Unknown
from checks.finding import Finding, Verdict
from checks.parsers import clock as parse
from checks.runner import run_checks
from tests.checks import healthy

HEAD = (
    "     remote           refid      st t when poll reach   delay   offset  jitter\n"
    "==============================================================================\n"
)
OWN = "*127.127.1.0     .LOCL.          10 l    2   64  377    0.000    0.000   0.001\n"
FAR = " 10.0.0.1        127.127.1.0      9 u   49   64  377    0.242  -3742.2   1.049\n"


def judged(**fields: Any) -> Finding:
    without = {"tracking": Unknown("not found: chronyc"), "daemons": ("ntpd",)}
    clock = healthy.clock(**{**without, **fields})
    report = run_checks(healthy.fleet(n3={"clock": clock}), only=["time.sync"])
    (found,) = [one for one in report.findings if "n3" in one.nodes]
    return found


def of_peers(rows: str) -> Finding:
    return judged(sources=parse.read_peers(HEAD + rows))


def test_ntpd_that_follows_its_own_clock_is_a_failure() -> None:
    found = of_peers(FAR + OWN)
    assert (found.verdict, found.evidence) == (
        Verdict.FAIL, "ntpd follows its own clock (127.127.1.0); 10.0.0.1 rejected (+3.74 s)",
    )  # fmt: skip
    assert of_peers(OWN.replace("127.127.1.0", "LOCAL(0)   ")).verdict is Verdict.FAIL
    # As a reserve it is no fault: another source steers.
    good = "*10.0.0.1        10.9.0.1         3 u   49   64  377    0.242   -0.100   1.049\n"
    assert of_peers(good + OWN.replace("*", " ", 1)).verdict is Verdict.PASS


def test_servers_that_answer_and_are_not_followed_are_told_with_their_distance() -> None:
    row = " 12.167.151.1    66.85.78.80      3 u    1   64    1   97.264  5602174   2.017\n"
    found = of_peers(row)
    assert found.verdict is Verdict.FAIL
    assert "12.167.151.1 rejected (-1 h 33 min)" in found.evidence
    assert "ntpd -gq" in (found.fix or "")


@pytest.mark.parametrize(
    ("offset", "reach", "verdict"),
    [
        ("-64.242", "377", "WARN"), ("250.1", "377", "FAIL"), ("-3742.2", "377", "FAIL"), ("0.2", "377", "PASS"),
        ("0.2", "17", "WARN"), ("inf", "377", "UNKNOWN"),
    ],
)  # fmt: skip
def test_offset_and_reach_of_ntpds_source_have_the_limits_of_chronys(
    offset: str, reach: str, verdict: str
) -> None:
    row = f"*10.0.0.1  10.9.0.1  3 u  49  64  {reach}  0.242  {offset}  1.049\n"
    assert of_peers(row).verdict.value == verdict


def test_ntpd_without_a_server_or_without_an_answer_is_not_made_good_by_the_kernel() -> None:
    assert judged(sources=()).verdict is Verdict.FAIL
    found = judged(sources=Unknown("not found: ntpq"))
    assert (found.verdict, "not found: ntpq" in found.evidence) == (Verdict.UNKNOWN, True)


def test_a_kernel_that_nobody_steers_any_more_is_a_warning() -> None:
    by_systemd = {"sources": Unknown("not found: ntpq"), "daemons": ("systemd-timesyn",)}
    assert judged(**by_systemd, kernel_max_error_s=0.9).verdict is Verdict.PASS
    found = judged(**by_systemd, kernel_max_error_s=10.0)
    assert found.verdict is Verdict.WARN
    assert found.evidence.endswith("but nothing has steered it for about 5 h 33 min")
