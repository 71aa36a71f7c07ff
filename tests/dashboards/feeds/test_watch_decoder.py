from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.errors import TransportError
from dashboards.feeds.watch_decoder import Decoder, parse_csv
from dashboards.model.samples import Disk, Gpu, Link, NodeSample

ROW = "0, NVIDIA H100 80GB HBM3, 698.30 W, 700.00 W, 100 %, 71204 MiB, 81559 MiB, 64, 1980 MHz"
KEY: dict[str, Any] = {
    "cpus": 208, "up": 1000.0, "driver": "565.57.01", "cpu": 0.21, "load1": 40.3, "net": 21_000.0,
    "mem": [612_000, 2_048_000], "links": 2,
    "L0": ["mlx5_0/1", "ib", "Active", 400.0, 0], "l0": [2400.0, 2410.0, 0],
    "L1": ["eth0", "eth", "up", 25.0, 1], "l1": [2.1, None, 3],
    "disks": [["/", 61_000, 440_000, ""], ["/data", None, None, ""], ["/x", None, None, "Stale file handle"]],
    "gpus": 2,
    "g0": [698, 97, 71_204, 64, 1980, 0, 5_000_000], "h0": ["H100", 700.0, 81_559, "00000000:0F:00.0", 0, 18, 18],
    "g1": [101, 100, 71_204, 41, 345, 0x48, None], "h1": ["H100", 700.0, 81_559, "00000000:44:00.0", 2, 17, 18],
    "procs": [[88121, "trainer", "python3", 0, 71_000, "run-1", 24, 60]],
}  # fmt: skip


def key(**changed: Any) -> bytes:
    return json.dumps({"n": 1, "key": {**KEY, **changed}}).encode()


def change(number: int = 2, **said: Any) -> bytes:
    beside = {name: said.pop(name) for name in ("step", "x") if name in said}
    return json.dumps({"n": number, "d": said, **beside}).encode()


def after(*lines: bytes, at_s: float = 5.0) -> NodeSample:
    decoder = Decoder("n1")
    for line in lines:
        decoder.take(line, at_s)
    sample = decoder.sample(at_s)
    assert sample is not None
    return sample


def test_first_line_tells_everything_in_our_units() -> None:
    sample = after(key())
    assert sample.gpus is not None
    assert sample.gpus[0] == Gpu(0, "H100", 698, 700.0, 0.97, 71_204 * 2**20, 81_559 * 2**20, 64, 1980, "", "", 0, (18, 18), 5_000_000)  # fmt: skip
    assert sample.gpus[1].throttle == "hw slowdown, hw thermal"
    assert (sample.gpus[1].ecc_errors, sample.gpus[1].nvlinks) == (2, (17, 18))
    assert sample.links == (
        Link("mlx5_0/1", "ib", "Active", 400.0, 2.4e9, 2.41e9, 0, 0),
        Link("eth0", "eth", "up", 25.0, 2.1e6, None, 3, 1),
    )
    assert sample.disks == (
        Disk("/", 61_000 * 2**20, 440_000 * 2**20),
        Disk("/data"),
        Disk("/x", error="Stale file handle"),
    )
    assert sample.processes is not None
    assert (sample.processes[0].rank, sample.processes[0].run) == (24, "run-1")
    assert (sample.cpu, sample.cpus, sample.network_bytes_s) == (0.21, 208, 21e9)
    assert (sample.up_s, sample.driver, sample.xids, sample.clock_step_s) == (1000.0, "565.57.01", (), 0.0)  # fmt: skip


def test_change_touches_what_it_names_and_leaves_the_rest_as_the_same_objects() -> None:
    decoder = Decoder("n1")
    decoder.take(key(), 5.0)
    before = decoder.sample(5.0)
    decoder.take(change(g1=[690, 99, 71_204, 60, 1980, 0, None], load1=41.0), 6.0)
    now = decoder.sample(6.0)
    assert before is not None
    assert now is not None
    assert before.gpus is not None
    assert now.gpus is not None
    assert now.gpus[0] is before.gpus[0]
    assert (now.gpus[1].power_w, now.gpus[1].throttle, now.load1) == (690, "", 41.0)
    assert now.links is before.links
    assert now.up_s == 1001.0


def test_what_is_null_is_there_no_more() -> None:
    sample = after(key(), change(gpus=None, g0=None, g1=None, h0=None, h1=None, gpu_error="NVML: no answer for 9 s"))  # fmt: skip
    assert (sample.gpus, sample.gpu_error) == (None, "NVML: no answer for 9 s")
    assert after(key(), change(disks=None)).disks is None


def test_lost_card_is_an_error_and_not_a_zero() -> None:
    gpus = after(key(), change(g1="GPU is lost")).gpus
    assert gpus is not None
    assert (gpus[1].error, gpus[1].power_w, gpus[0].power_w) == ("GPU is lost", None, 698)


def test_node_without_gpus_has_none_and_that_is_known() -> None:
    assert after(key(gpus=0)).gpus == ()


def test_nvidia_smis_text_gives_gpus_too() -> None:
    sample = after(key(gpus=None, csv=ROW + "\n"))
    assert sample.gpus == (
        Gpu(0, "NVIDIA H100 80GB HBM3", 698.3, 700.0, 1.0, 71204 * 2.0**20, 81559 * 2.0**20, 64.0, 1980.0),
    )  # fmt: skip


def test_gpus_are_known_by_text_while_nvml_fails_and_by_nvml_again() -> None:
    of_nvml = {name: KEY[name] for name in ("gpus", "g0", "g1", "h0", "h1", "procs")}
    decoder = Decoder("n1")
    lines = [key(), change(csv=ROW, **dict.fromkeys(of_nvml)), change(csv=None, **of_nvml)]
    found = []
    for line in lines:
        decoder.take(line, 5.0)
        found.append(decoder.sample(5.0))
    first, text, again = found
    assert text is not None
    assert [gpu.power_w for gpu in text.gpus or ()] == [698.3]
    assert text.processes is None
    assert again == first


def test_xid_finds_its_gpu_by_the_address_and_stays() -> None:
    line = change(
        x=[[2.0, "0000:44:00", 74, "NVLink: fatal error"], [1.0, "0019:01:00", 79, "off"]]
    )
    decoder = Decoder("n1")
    for number, text in enumerate([key(), line, change(3)]):
        decoder.take(text, 100.0 + number)
    sample = decoder.sample(102.0)
    assert sample is not None
    assert sample.xids is not None
    assert [(x.gpu, x.code, x.at_s) for x in sample.xids] == [(1, 74, 99.0), (None, 79, 100.0)]


def test_log_that_none_may_read_is_unknown() -> None:
    assert after(key(xlog="/dev/kmsg: Operation not permitted")).xids is None


def test_steps_of_the_clock_add_up_until_they_are_told_once() -> None:
    decoder = Decoder("n1")
    for line in (key(), change(step=2.5), change(3, step=-0.5)):
        decoder.take(line, 5.0)
    told = [decoder.sample(5.0), decoder.sample(5.0)]
    assert [sample and sample.clock_step_s for sample in told] == [2.0, 0.0]


def test_age_of_a_process_goes_on() -> None:
    decoder = Decoder("n1")
    decoder.take(key(), 5.0)
    sample = decoder.sample(105.0)
    assert sample is not None
    assert sample.processes is not None
    assert sample.processes[0].age_s == 160.0


def test_answer_about_the_time_is_no_reading() -> None:
    decoder = Decoder("n1")
    assert not decoder.take(b'{"pong": 7, "t": 1795270000.25}', 5.0)
    assert decoder.pong == (7, 1795270000.25)
    assert decoder.sample(5.0) is None


@pytest.mark.parametrize(
    "line", [b"", b"garbage", b"[]", b"7", b"{}", b'{"n": 1, "d": {}}', b'{"n": 1, "key": []}', b'{"pong": "x"}', b"\xff\xfe", b'{"n":1'],
)  # fmt: skip
def test_line_that_is_none_of_the_watchers_is_refused(line: bytes) -> None:
    with pytest.raises(TransportError):
        Decoder("n1").take(line, 5.0)


def test_unreadable_column_is_unknown_and_the_others_stay() -> None:
    gpus = parse_csv(ROW.replace("698.30 W", "[N/A]"))
    assert gpus is not None
    assert (gpus[0].power_w, gpus[0].util, gpus[0].error) == (None, 1.0, "")


def test_lost_card_in_text_is_an_error() -> None:
    lost = "3, NVIDIA H100 80GB HBM3" + ", [GPU is lost]" * 7
    gpus = parse_csv(f"{ROW}\n{lost}")
    assert gpus is not None
    assert [gpu.error for gpu in gpus] == ["", "GPU is lost"]
    assert gpus[1].power_w is None


@pytest.mark.parametrize("text", ["", "No devices were found", ROW[:30], "a, b, c\n", "\0\0"])
def test_text_that_is_no_table_is_unknown(text: str) -> None:
    assert parse_csv(text) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8) | st.integers(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    said=st.dictionaries(st.sampled_from([*KEY, "csv", "gpu_error", "xlog", "g2"]), json_values),
    beside=st.dictionaries(st.sampled_from(["step", "x", "n"]), json_values),
)
def test_odd_values_are_unknown_or_refused(said: dict[str, Any], beside: dict[str, Any]) -> None:
    change = [key(), json.dumps({"n": 2, "d": said, **beside}).encode()]
    for lines in (change, [json.dumps({"key": said, **beside}).encode()]):
        with contextlib.suppress(TransportError):
            assert after(*lines).node == "n1"


def test_keys_that_no_watcher_has_are_refused_not_kept() -> None:
    for name in ("z", "g64", "g-1", "g9999999999", "gx", "l1e3", "Disks"):
        with pytest.raises(TransportError, match="should be absent"):
            after(json.dumps({"n": 1, "key": {name: "x"}}).encode())


@pytest.mark.slow
def test_what_a_node_says_is_kept_once_however_often_it_says_it() -> None:
    decoder = Decoder("n1")
    decoder.take(key(), 0.0)
    decoder.take(json.dumps({"n": 2, "d": {f"g{i}": ["x" * 1000] * 16 for i in range(14)}}).encode(), 1.0)  # fmt: skip
    tracemalloc.start()
    for number in range(3, 200):
        told = {"disks": [[f"/{number}" + "x" * 900, 1, 2, ""]] * 200, "xlog": f"{number}"}
        decoder.take(json.dumps({"n": number, "d": told, "x": [[0, "", 79, "lost"]] * 200}).encode(), number)  # fmt: skip
        decoder.sample(number)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2 << 20
