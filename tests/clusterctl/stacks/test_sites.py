"""The table of wait sites: what stacks of torch and of our trainer mean, and a user's own lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.stacks.frames import Stack, make_frame, trim
from clusterctl.stacks.sites import Sites, read_sites

LIB = "/opt/env/lib/python3.11"
TORCH = f"{LIB}/site-packages/torch"


def stack(*frames: tuple[str, str], source: str = "") -> Stack:
    made = [make_frame(name, path, path.rsplit("/", 1)[-1], 1) for name, path in frames]
    return Stack(trim(made), source)


@pytest.mark.parametrize(
    ("kind", "frames", "source"),
    [
        ("collective", [("all_gather_into_tensor", f"{TORCH}/distributed/distributed_c10d.py"), ("gather", "/j/trainer/engine/base.py")], ""),
        ("rendezvous", [("init_process_group", f"{TORCH}/distributed/distributed_c10d.py"), ("main", "/j/train.py")], ""),
        ("rendezvous", [("barrier", f"{TORCH}/distributed/x.py"), ("_store_based_barrier", f"{TORCH}/distributed/distributed_c10d.py")], ""),
        ("collective", [("barrier", f"{TORCH}/distributed/distributed_c10d.py"), ("save", "/j/trainer/checkpoint.py")], ""),
        ("device-wait", [("synchronize", f"{TORCH}/cuda/__init__.py"), ("main", "/j/train.py")], ""),
        ("device-wait", [("step", "/j/train.py")], "loss_value = loss.item()"),
        ("code", [("step", "/j/train.py")], "loss_value = model(x)"),
        ("wait-data", [("take", f"{LIB}/site-packages/trainer/data/dataset.py"), ("__iter__", f"{LIB}/site-packages/trainer/data/dataset.py")], ""),
        ("loader-idle", [("serve", f"{LIB}/site-packages/trainer/data/decode.py")], ""),
        ("loader-work", [("read_window", "/j/video.py"), ("serve", f"{LIB}/site-packages/trainer/data/decode.py")], ""),
        ("loader-work", [("__getitem__", "/j/d.py"), ("fetch", f"{TORCH}/utils/data/_utils/fetch.py"), ("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py")], ""),
        ("loader-idle", [("poll", f"{LIB}/multiprocessing/connection.py"), ("Queue.get", f"{LIB}/multiprocessing/queues.py"), ("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py")], ""),
        ("checkpoint", [("_save", f"{TORCH}/serialization.py"), ("save", f"{TORCH}/serialization.py"), ("main", "/j/train.py")], ""),
        ("net-log", [("send", f"{LIB}/ssl.py"), ("log", f"{LIB}/site-packages/wandb/sdk/wandb_run.py"), ("main", "/j/train.py")], ""),
        ("lock", [("acquire", f"{LIB}/threading.py"), ("main", "/j/train.py")], ""),
        ("gc", [("main", "/j/train.py")], "gc.collect()"),
        ("backward", [("_engine_run_backward", f"{TORCH}/autograd/graph.py"), ("main", "/j/train.py")], ""),
        ("none", [], ""),
    ],
)  # fmt: skip
def test_kinds(kind: str, frames: list[tuple[str, str]], source: str) -> None:
    assert Sites().kind(stack(*frames, source=source)) == kind


def test_text_puts_the_users_own_line_forward() -> None:
    one = stack(("select", f"{LIB}/selectors.py"), ("_try_get_data", f"{TORCH}/utils/data/dataloader.py"), ("main", "/j/train.py"))  # fmt: skip
    assert one.text(Sites().match(one)) == "_try_get_data <- main train.py:1"
    assert stack().text() == "no Python frame"
    assert Sites().call(one) == ("_try_get_data", "main train.py:1")


def test_users_table_is_read_or_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    path.write_text('[[site]]\nkind = "collective"\nfunction = "my_.*"\n')
    assert Sites(read_sites(path)).kind(stack(("my_reduce", "/j/x.py"))) == "collective"
    for text in ('[[site]]\nfunction = "x"\n', '[[site]]\nkind = "x"\nfunction = "("\n', "[[site", '[[site]]\nkind = "x"\ncolour = "y"\n'):  # fmt: skip
        path.write_text(text)
        with pytest.raises(UsageError, match=r"sites\.toml"):
            read_sites(path)
