"""chronyc, ntpq and timedatectl: signs, false healthy ones, daemons that are not there."""

from __future__ import annotations

import re

import pytest

from checks.facts import Unknown
from checks.parsers import clock
from checks.parsers.section import parsed
from tests.checks.captures import recorded
from tests.checks.sections import ended, lacking

STATES = ("good", "bigoffset", "falseticker", "backwards", "unreachable", "unsync", "local10")


def tracking(name: str):
    found = clock.read_tracking(recorded(f"chrony/{name}.tracking.csv"))
    assert not isinstance(found, Unknown), found
    return found


def sources(name: str):
    found = clock.read_sources(recorded(f"chrony/{name}.sources.csv"))
    assert not isinstance(found, Unknown), found
    return found


def test_offset_is_positive_where_our_clock_is_ahead() -> None:
    # The only server is 2.5 s ahead: we are behind it.
    assert tracking("bigoffset").offset_s == pytest.approx(-2.500047)
    # The server stepped back 3 s: we are ahead of it now.
    assert tracking("backwards").offset_s == pytest.approx(2.9999547)
    false = [one for one in sources("falseticker") if one.state == "falseticker"]
    assert [one.address for one in false] == ["10.99.0.3"]
    assert false[0].offset_s == pytest.approx(-2.499899)  # the same server, the same sign


@pytest.mark.parametrize("name", STATES)
def test_csv_is_read_with_the_meaning_of_the_words(name: str) -> None:
    found, words = tracking(name), recorded(f"chrony/{name}.tracking.txt")
    offset = re.search(r"System time     : ([\d.]+) seconds (fast|slow) of NTP time", words)
    frequency = re.search(r"Frequency       : ([\d.]+) ppm (fast|slow)", words)
    assert offset is not None
    assert frequency is not None
    sign = {"fast": 1, "slow": -1}
    assert found.offset_s == pytest.approx(float(offset[1]) * sign[offset[2]], abs=1e-4)
    assert found.frequency_ppm == pytest.approx(float(frequency[1]) * sign[frequency[2]], abs=1e-3)
    assert f"Leap status     : {found.leap}" in words
    assert f"Stratum         : {found.stratum}" in words
    states = {state: mark for mark, state in clock.STATES.items()}
    table = recorded(f"chrony/{name}.sources.txt")
    for one in sources(name):
        mark = re.escape(states[one.state])
        assert re.search(rf"\^{mark} {re.escape(one.address)} .* {one.reach:o} ", table)


def test_local_stratum_says_normal_and_follows_nothing() -> None:
    found = tracking("local10")
    assert (found.leap, found.is_local, found.ref_id) == ("Normal", True, "7F7F0101")
    assert [one.state for one in sources("local10")] == ["unreachable"]
    assert not tracking("good").is_local


def test_a_server_that_never_answered_has_no_offset() -> None:
    (silent,) = sources("unreachable")
    assert isinstance(silent.last_rx_s, Unknown)
    assert isinstance(silent.offset_s, Unknown)
    assert silent.reach == 0
    assert {one.reach for one in sources("good")} == {0o377}


def test_no_daemon_is_unknown() -> None:
    text = recorded("chrony/no-daemon.tracking.txt")
    for section in (ended(text, 1), ended("506 Cannot talk to daemon\n", 1), lacking(), None):
        sent = {"began": ended(""), "chrony_tracking": section, "chrony_sources": section}
        found = clock.parse_clock({key: one for key, one in sent.items() if one}, 9e4, 1.8e9)
        assert isinstance(found.tracking, Unknown)
        assert isinstance(found.sources, Unknown)


def test_ntpq_peers_are_both_falsetickers_and_one_is_silent() -> None:
    found = clock.parse_peers(ended(recorded("ntp/ntpq-pn.txt")))
    assert not isinstance(found, Unknown)
    assert [(one.address, one.state) for one in found] == [
        ("10.99.0.1", "falseticker"), ("10.99.0.3", "falseticker"), ("10.99.0.77", "unreachable"),
    ]  # fmt: skip
    assert found[1].offset_s == pytest.approx(-2.500054)  # the server is ahead of us
    assert isinstance(found[2].offset_s, Unknown)


def test_ntpq_without_a_daemon_exits_0_and_is_unknown() -> None:
    found = clock.parse_peers(ended(recorded("ntp/ntpq-no-daemon.txt"), 0))
    assert isinstance(found, Unknown)
    assert "timed out" in found.reason


@pytest.mark.parametrize(
    ("text", "rc", "expected"),
    [("NTPSynchronized=yes\n", 0, True), ("Warning\nNTPSynchronized=no\n", 0, False),
     ("", 0, None), ("NTPSynchronized=ja\n", 0, None), ("NTPSynchronized=yes\n", 1, None)],
)  # fmt: skip
def test_timedatectl(text: str, rc: int, expected: bool | None) -> None:
    found = parsed(ended(text, rc), clock.read_timedatectl)
    assert (None if isinstance(found, Unknown) else found) is expected


def test_adjtimex_bit() -> None:
    assert clock.read_adjtimex("state=0 status=8193 maxerror=1 esterror=1") is True
    assert clock.read_adjtimex("state=5 status=64 maxerror=1 esterror=1") is False
    assert isinstance(clock.read_adjtimex(""), Unknown)


def test_shortest_round_trip_counts_and_a_head_that_steps_back_does_not() -> None:
    samples = [(100.0, 100.35, 100.2), (200.0, 200.051, 200.002), (300.0, 300.0, 299.0)]
    found = clock.best_exchange(samples)
    assert not isinstance(found, Unknown)
    assert (found.offset_s, found.error_s, found.samples) == (
        pytest.approx(0.050), pytest.approx(0.001), 2,
    )  # fmt: skip
    assert isinstance(clock.best_exchange([]), Unknown)


PEERS = (
    "     remote           refid      st t when poll reach   delay   offset  jitter\n"
    "==============================================================================\n"
)


def test_ntpq_tells_its_own_clock_from_a_server_that_serves_its_own() -> None:
    rows = {
        "*127.127.1.0     .LOCL.          10 l    2   64  377    0.000    0.000   0.001": True,
        "*LOCAL(0)        .LOCL.           5 l    2   64  377    0.000    0.000   0.001": True,
        "*127.127.1.1     LOCAL(1)        10 l    2   64  377    0.000    0.000   0.001": True,
        "*10.0.0.1        127.127.1.0      9 u   49   64  377    0.242    0.100   1.049": False,
        "*10.0.0.1        .LOCL.           1 u   49   64  377    0.242    0.100   1.049": False,
        "*127.127.28.0    .GPS.            7 l   23   64  377    0.000    0.242  20.760": False,
        "o127.127.22.0    .PPS.            0 l   23   64  377    0.000    0.242   0.760": False,
    }
    found = clock.read_peers(PEERS + "\n".join(rows))
    assert not isinstance(found, Unknown)
    assert [one.is_own_clock for one in found] == list(rows.values())


def test_a_server_that_answers_and_is_not_taken_is_not_unreachable() -> None:
    row = " 12.167.151.1    66.85.78.80      3 u    1   64    1   97.264  5602174   2.017"
    (found,) = clock.read_peers(PEERS + row)  # type: ignore[misc]
    assert (found.state, found.offset_s) == ("rejected", pytest.approx(-5602.174))
    (found,) = clock.read_sources("^,?,10.0.0.1,2,6,1,21,0.1,2.5,0.001")  # type: ignore[misc]
    assert found.state == "not usable"
    assert clock.read_peers("No association ID's returned\n") == ()


def test_the_kernels_bound_is_read_in_seconds() -> None:
    assert clock.read_max_error("state=0 status=8193 maxerror=16000000 esterror=1") == 16.0
    assert isinstance(clock.read_max_error("state=0 status=1"), Unknown)
