"""chronyc, ntpq and timedatectl: signs, false healthy ones, daemons that are not there."""

from __future__ import annotations

import pytest

from checks.facts import Unknown
from checks.parsers import chrony, ntp
from tests.checks.captures import recorded
from tests.checks.sections import ended, lacking

STATES = ("good", "bigoffset", "falseticker", "backwards", "unreachable", "unsync", "local10")


def tracking(name: str, kind: str = "csv"):
    found = chrony.read_tracking(recorded(f"chrony/{name}.tracking.{kind}"))
    assert not isinstance(found, Unknown), found
    return found


def sources(name: str, kind: str = "csv"):
    found = chrony.read_sources(recorded(f"chrony/{name}.sources.{kind}"))
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
def test_csv_and_words_say_the_same(name: str) -> None:
    plain, words = tracking(name), tracking(name, "txt")
    assert (plain.ref_id, plain.stratum, plain.leap) == (words.ref_id, words.stratum, words.leap)
    assert plain.offset_s == pytest.approx(words.offset_s, abs=1e-4)
    assert plain.rms_offset_s == pytest.approx(words.rms_offset_s, abs=1e-4)
    assert plain.frequency_ppm == pytest.approx(words.frequency_ppm, abs=1e-3)
    assert plain.ref_time_s == pytest.approx(words.ref_time_s, abs=60)
    assert [(one.address, one.state, one.reach) for one in sources(name)] == [
        (one.address, one.state, one.reach) for one in sources(name, "txt")
    ]


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
    for section in (ended(text, 1), ended("506 Cannot talk to daemon\n", 1), lacking()):
        assert isinstance(chrony.parse_tracking(section), Unknown)
        assert isinstance(chrony.parse_sources(section), Unknown)
    assert isinstance(chrony.parse_tracking(None), Unknown)


def test_ntpq_peers_are_both_falsetickers_and_one_is_silent() -> None:
    found = ntp.parse_peers(ended(recorded("ntp/ntpq-pn.txt")))
    assert not isinstance(found, Unknown)
    assert [(one.address, one.state) for one in found] == [
        ("10.99.0.1", "falseticker"), ("10.99.0.3", "falseticker"), ("10.99.0.77", "unreachable"),
    ]  # fmt: skip
    assert found[1].offset_s == pytest.approx(-2.500054)  # the server is ahead of us
    assert isinstance(found[2].offset_s, Unknown)


def test_ntpq_without_a_daemon_exits_0_and_is_unknown() -> None:
    found = ntp.parse_peers(ended(recorded("ntp/ntpq-no-daemon.txt"), 0))
    assert isinstance(found, Unknown)
    assert "timed out" in found.reason


@pytest.mark.parametrize(
    ("text", "rc", "expected"),
    [("NTPSynchronized=yes\n", 0, True), ("Warning\nNTPSynchronized=no\n", 0, False),
     ("", 0, None), ("NTPSynchronized=ja\n", 0, None), ("NTPSynchronized=yes\n", 1, None)],
)  # fmt: skip
def test_timedatectl(text: str, rc: int, expected: bool | None) -> None:
    found = ntp.parse_timedatectl(ended(text, rc))
    assert (None if isinstance(found, Unknown) else found) is expected


def test_adjtimex_bit() -> None:
    assert ntp.parse_adjtimex(ended("state=0 status=8193 maxerror=1 esterror=1")) is True
    assert ntp.parse_adjtimex(ended("state=5 status=64 maxerror=1 esterror=1")) is False
    assert isinstance(ntp.parse_adjtimex(ended("")), Unknown)


def test_shortest_round_trip_counts_and_a_head_that_steps_back_does_not() -> None:
    samples = [(100.0, 100.35, 100.2), (200.0, 200.051, 200.002), (300.0, 300.0, 299.0)]
    found = ntp.best_exchange(samples)
    assert not isinstance(found, Unknown)
    assert (found.offset_s, found.error_s, found.samples) == (
        pytest.approx(0.050), pytest.approx(0.001), 2,
    )  # fmt: skip
    assert isinstance(ntp.best_exchange([]), Unknown)
