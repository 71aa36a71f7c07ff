"""What is written: one text a process, a page, a profile; and what two reports differ in."""

from __future__ import annotations

import base64
import json
import re
import tracemalloc
import zlib
from pathlib import Path

import pytest

from clusterctl.errors import TransportError, UsageError
from clusterctl.stacks.diagnose import inflate
from clusterctl.stacks.files import compare_reports, read_report, write_folder, write_speedscope
from clusterctl.stacks.frames import parse_faulthandler
from clusterctl.stacks.judge import judge
from tests.clusterctl.stacks.made import ALL_REDUCE, FORWARD, Made, cluster, silent, snapshot

CAPTURES = Path(__file__).parents[2] / "captures/py-spy"


def test_folder_holds_every_process_once_and_a_page(tmp_path: Path) -> None:
    made = snapshot(*cluster(2, 2, 3))
    write_folder(tmp_path, made, judge(made), [], {})
    texts = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*.txt"))
    assert len(texts) == 2 * 2 * 4
    assert re.fullmatch(r"node-001/0000-loader0-\d+\.txt", texts[0])
    assert "all_reduce (torch/distributed/distributed_c10d.py:3252)" in (
        next(tmp_path.glob("node-001/0000-trainer*")).read_text()
    )
    page = (tmp_path / "index.html").read_text()
    assert "</script><script>" not in json.dumps(
        page.split('id="report">')[1].split("</script>")[0]
    )
    assert json.loads(page.split('id="report">')[1].split("</script>")[0])["world"] == 4


def test_page_treats_what_the_cluster_says_as_text(tmp_path: Path) -> None:
    node = Made("a")
    evil = [("<script>alert(1)</script>", "/x/</script><b>.py", "</script><b>.py", 1)]
    node.add("trainer", 0, evil, world=1)
    made = snapshot(node)
    write_folder(tmp_path, made, judge(made), [], {})
    page = (tmp_path / "index.html").read_text()
    assert "<script>alert" not in page
    assert page.count("</script>") == 2


def test_profile_weighs_stacks_by_processes(tmp_path: Path) -> None:
    write_speedscope(tmp_path / "p.json", snapshot(*cluster(2, 4, 2)))
    profile = json.loads((tmp_path / "p.json").read_text())["profiles"][0]
    assert sorted(profile["weights"]) == [8, 16]
    assert profile["endValue"] == 24


def test_difference_of_two_reports(tmp_path: Path) -> None:
    for name, stacks in (("a", {1: FORWARD}), ("b", {1: ALL_REDUCE})):
        made = snapshot(*cluster(2, 1, 1, stacks))
        write_folder(tmp_path / name, made, judge(made), [], {})
    found = compare_reports(read_report(tmp_path / "a"), read_report(tmp_path / "b/report.json"))
    assert [entry["mark"] for entry in found] == ["~", "=", "="]
    assert found[0]["who"].startswith("rank 1 trainer")
    assert "forward model.py:40" in found[0]["text"]
    assert "all_reduce distributed_c10d.py:3252" in found[0]["text"]


def test_captures_of_py_spy_are_understood() -> None:
    node = Made("a")
    for name in ("main", "worker-stuck"):
        threads = json.loads((CAPTURES / f"{name}.json").read_text())
        pid = node.add("trainer" if name == "main" else "loader", 0, index=0)
        for sample in node.samples:
            sample["processes"][str(pid)]["threads"] = node.table.add(
                [{**t, "os_thread_id": pid if t["thread_name"] == "MainThread" else t["os_thread_id"]} for t in threads]
            )  # fmt: skip
    trainer, worker = snapshot(node).procs
    assert worker.kind == "loader-work"
    assert worker.where() == "read_video_frames train.py:5 <- _worker_loop"
    assert trainer.where().startswith("train_one_epoch train.py:17 <- main")
    assert [f.function for f in worker.stack.frames] == ["read_video_frames", "_worker_loop"]


def test_faulthandler_text_is_understood() -> None:
    text = (
        'Thread 0x00007f11 (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 327 in wait\n\n'
        'Current thread 0x00007f22 (most recent call first):\n  File "/job/train.py", line 17 in step\n'
        '  File "/job/train.py", line 30 in main\n  File "/job/tr'
    )
    threads = parse_faulthandler(text)
    assert [[f.function for f in frames] for _, frames in threads] == [["wait"], ["step", "main"]]
    assert threads[0][1][0].path == "threading.py"
    assert parse_faulthandler("") == parse_faulthandler("no dump\n") == []


@pytest.mark.parametrize("role", ["a\0b", "x" * 5000, "../../up", "/etc", "..", "caf\udce9", "<b>"])
def test_role_of_any_kind_leads_to_a_file_of_the_folder(role: str, tmp_path: Path) -> None:
    node = Made("a")
    node.add(role, 0, ALL_REDUCE, world=2)
    node.add("trainer", 1, FORWARD, world=2)
    made = snapshot(node)
    write_folder(tmp_path / "out", made, judge(made), [], {})
    write_speedscope(tmp_path / "profile.json", made)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*"))
    assert len(names) == 5
    assert sum(name.startswith("out/a/") for name in names) == 2


@pytest.mark.parametrize("name", ["x" * 253, "a..b", "n_1", "GPU-1.example"])
def test_node_of_any_name_gets_a_folder(name: str, tmp_path: Path) -> None:
    made = snapshot(*cluster(1, 1, 1), silent(name))
    write_folder(tmp_path / "out", made, judge(made), [], {})
    assert len(list(tmp_path.glob("out/*/no-answer.txt"))) == 1


def test_name_of_a_file_that_is_no_text_is_written(tmp_path: Path) -> None:
    node = Made("a")
    pid = node.add("loader", 0, FORWARD, index=0)
    node.add("trainer", 0, ALL_REDUCE, world=1)
    node.more["open"] = {str(pid): ["/data/caf\udce9.mp4"]}
    made = snapshot(node)
    write_folder(tmp_path, made, judge(made), [], {})
    assert "open: /data/caf\\udce9.mp4" in next(tmp_path.glob("a/*loader*")).read_text()


def test_report_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("[" * 100_000)
    with pytest.raises(UsageError, match=r"report\.json"):
        read_report(path)


@pytest.mark.slow
def test_packed_report_is_unpacked_up_to_a_limit() -> None:
    def pack(text: bytes) -> str:
        return base64.b64encode(zlib.compress(text, 9)).decode()

    assert inflate(pack(b'{"rows": []}')) == b'{"rows": []}'
    bomb = pack(bytes(600 << 20))
    assert len(bomb) < 1 << 20
    tracemalloc.start()
    with pytest.raises(TransportError, match="longer than 6 MiB") as caught:
        inflate(bomb)
    assert tracemalloc.get_traced_memory()[1] < 40 << 20
    tracemalloc.stop()
    assert caught.value.phase == "parse"
    for odd in (pack(b'{"rows": []}')[:-8], "????", "", base64.b64encode(b"no zip").decode()):
        with pytest.raises(TransportError, match="the report of stacks"):
            inflate(odd)
