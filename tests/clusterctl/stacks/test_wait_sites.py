"""The table of wait sites: what stacks of torch and of our trainer mean, and a user's own lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import UsageError
from clusterctl.payload.dump.frames import Table
from clusterctl.stacks.frames import Book, Stack, make_frame, trim
from clusterctl.stacks.wait_sites import TABLE, Sites, read_sites

ROOT = Path(__file__).parents[3]
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
        ("collective", [("barrier", f"{TORCH}/distributed/distributed_c10d.py"), ("save", "/j/trainer/loop.py")], ""),
        ("device-wait", [("synchronize", f"{TORCH}/cuda/__init__.py"), ("main", "/j/train.py")], ""),
        ("device-wait", [("step", "/j/train.py")], "loss_value = loss.item()"),
        ("code", [("step", "/j/train.py")], "loss_value = model(x)"),
        ("wait-data", [("take", f"{LIB}/site-packages/trainer/data/loader/loader.py"), ("__iter__", f"{LIB}/site-packages/trainer/data/loader/loader.py")], ""),
        ("loader-idle", [("serve", f"{LIB}/site-packages/trainer/data/video/decode_process.py")], ""),
        ("loader-work", [("read_window", "/j/video.py"), ("serve", f"{LIB}/site-packages/trainer/data/video/decode_process.py")], ""),
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


def test_the_trainers_own_functions_are_where_the_table_says() -> None:
    """A file of the trainer that is renamed must be renamed in the table too."""
    from trainer import loop
    from trainer.checkpoint import files
    from trainer.checkpoint.async_saver import Saver
    from trainer.data.loader.loader import Worker
    from trainer.data.video import decode_process
    from trainer.engine import shards
    from trainer.engine.base import Engine
    from trainer.journal import Journal
    from trainer.trackers.wandb_run import Wandb

    def kind(function: Any, below: str = "", file: str = "/j/video.py") -> str:
        code = function.__code__
        inner = [(below, file)] if below else []
        path = f"{LIB}/site-packages/{Path(code.co_filename).relative_to(ROOT)}"
        return Sites().kind(stack(*inner, (code.co_name, path)))

    assert kind(Worker.take) == "wait-data"
    assert kind(decode_process.serve) == "loader-idle"
    assert kind(decode_process.serve, "read_window") == "loader-work"
    assert kind(files.seal) == kind(loop.save) == "checkpoint"
    assert kind(Saver.hold, "Condition.wait", f"{LIB}/threading.py") == "checkpoint"
    assert kind(shards.write) == "checkpoint"
    assert kind(Wandb._take) == kind(Journal.event) == "net-log"
    assert kind(Engine.step) == "code"


def test_every_file_of_the_trainer_in_the_table_exists() -> None:
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "trainer").rglob("*.py")]
    ours = [site.file for site in TABLE if site.file.startswith("trainer/")]
    assert len(ours) == 6
    for pattern in ours:
        begin, _, rest = pattern.partition("(")
        names, _, end = rest.partition(")")
        for one in [begin + name + end for name in names.split("|")]:
            assert any(map(re.compile(one).match, files)), one


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
    path.write_text('[[site]]\nkind = "colective"\n')
    with pytest.raises(UsageError, match="unknown kind 'colective': must be one of collective, "):
        read_sites(path)


C10D = f"{TORCH}/distributed/distributed_c10d.py"
DDP = f"{TORCH}/nn/parallel/distributed.py"
LOADER = f"{TORCH}/utils/data/dataloader.py"
STATEFUL = f"{LIB}/site-packages/torchdata/stateful_dataloader/stateful_dataloader.py"
WAIT = ("Condition.wait", f"{LIB}/threading.py")
STEP = ("step", "/j/train.py")


@pytest.mark.parametrize(
    ("kind", "frames", "source"),
    [
        # DistributedDataParallel beside its backward pass
        ("collective", [("_verify_param_shape_across_processes", f"{TORCH}/distributed/utils.py"), ("DistributedDataParallel.__init__", DDP), STEP], ""),
        ("collective", [("_sync_params_and_buffers", f"{TORCH}/distributed/utils.py"), ("_sync_module_states", f"{TORCH}/distributed/utils.py"), ("DistributedDataParallel.__init__", DDP), STEP], ""),
        ("collective", [("DistributedDataParallel._distributed_broadcast_coalesced", DDP), ("DistributedDataParallel._sync_buffers", DDP), STEP], ""),
        ("collective", [("DistributedDataParallel._pre_forward", DDP), ("DistributedDataParallel.forward", DDP), STEP], "self.reducer._rebuild_buckets()"),
        ("code", [("Linear.forward", f"{TORCH}/nn/modules/linear.py"), ("DistributedDataParallel._run_ddp_forward", DDP), STEP], ""),
        # waits in C++ below a line: all there is of them is its text
        ("collective", [STEP], "work.wait()"),
        ("collective", [STEP], "for req in reqs: req.wait()"),
        ("collective", [("<listcomp>", f"{TORCH}/distributed/optim/zero_redundancy_optimizer.py"), ("ZeroRedundancyOptimizer.step", f"{TORCH}/distributed/optim/zero_redundancy_optimizer.py"), STEP], "_ = [x.wait() for x in all_work]"),
        ("collective", [("_communicate", "/j/megatron/core/pipeline_parallel/p2p_communication.py"), STEP], "req.wait()"),
        ("collective", [("_communicate", f"{LIB}/site-packages/colossalai/pipeline/p2p.py"), STEP], "handle.wait()"),
        ("collective", [("allreduce_bucket", f"{LIB}/site-packages/deepspeed/runtime/engine.py"), STEP], "handle.wait()"),
        ("rendezvous", [("main", "/j/train.py")], 'address = store.get("address")'),
        ("rendezvous", [("main", "/j/train.py")], 'self._store.wait(["ready"], timeout)'),
        ("rendezvous", [("barrier", f"{TORCH}/distributed/elastic/utils/store.py"), STEP], ""),
        ("collective", [("OpOverload.__call__", f"{TORCH}/_ops.py"), ("call", "/tmp/torchinductor_me/ab/cab.py"), STEP], "buf9 = torch.ops._c10d_functional.wait_tensor.default(buf8)"),
        ("code", [("OpOverload.__call__", f"{TORCH}/_ops.py"), ("call", "/tmp/torchinductor_me/ab/cab.py"), STEP], "buf9 = torch.ops.aten.mm.default(buf8, buf7)"),
        # data
        ("wait-data", [WAIT, ("Queue.get", f"{LIB}/queue.py"), ("_MultiProcessingDataLoaderIter._try_get_data", LOADER), ("_MultiProcessingDataLoaderIter._get_data", LOADER), STEP], ""),
        ("wait-data", [("Popen.poll", f"{LIB}/multiprocessing/popen_fork.py"), ("BaseProcess.join", f"{LIB}/multiprocessing/process.py"), ("_MultiProcessingDataLoaderIter._shutdown_workers", LOADER), STEP], ""),
        ("wait-data", [WAIT, ("Queue.get", f"{LIB}/queue.py"), ("_StatefulMultiProcessingDataLoaderIter._try_get_data", STATEFUL), STEP], ""),
        ("loader-work", [("__getitem__", "/j/d.py"), ("_MapDatasetFetcher.fetch", f"{TORCH}/utils/data/_utils/fetch.py"), ("_SingleProcessDataLoaderIter._next_data", LOADER), STEP], ""),
        # saves, with whatever they wait in
        ("checkpoint", [WAIT, ("Future.result", f"{LIB}/concurrent/futures/_base.py"), ("save_checkpoint", "/j/io.py"), STEP], ""),
        ("checkpoint", [("Trainer._save_checkpoint", f"{LIB}/site-packages/transformers/trainer.py"), ("Trainer.train", f"{LIB}/site-packages/transformers/trainer.py")], ""),
        ("checkpoint", [("rmtree", f"{LIB}/shutil.py"), ("Trainer._rotate_checkpoints", f"{LIB}/site-packages/transformers/trainer.py")], ""),
        ("net-log", [WAIT, ("MailboxHandle.wait_or", f"{LIB}/site-packages/wandb/sdk/mailbox/mailbox_handle.py"), STEP], ""),
        ("lock", [WAIT, ("Event.wait", f"{LIB}/threading.py"), STEP], "signaled = self._cond.wait(timeout)"),
        # the device, by the text of the line
        *[("device-wait", [STEP], text) for text in (
            "if torch.isfinite(loss):", "if found_inf:", "total = int(x.sum())", "x = x.to('cpu')", "index = mask.nonzero()",
            "batch = batch.cuda()", "done = mask.all()", "print(loss)", "batch = batch.to(device)", "if not torch.isnan(loss).any():",
        )],
        ("device-wait", [("_tensor_str", f"{TORCH}/_tensor_str.py"), ("Tensor.__repr__", f"{TORCH}/_tensor.py"), STEP], ""),
        *[("code", [STEP], text) for text in (
            "batch = batch.cuda(non_blocking=True)", "x = x.to(device, non_blocking=True)", "loss = model(batch)", "total = int(text)",
        )],
        # Python inside of a backward pass means what it means elsewhere
        ("code", [("Attention.forward", "/j/model.py"), ("CheckpointFunction.backward", f"{TORCH}/utils/checkpoint.py"), ("_engine_run_backward", f"{TORCH}/autograd/graph.py"), STEP], ""),
        ("lock", [WAIT, ("hook", "/j/train.py"), ("_engine_run_backward", f"{TORCH}/autograd/graph.py"), STEP], ""),
        ("collective", [("all_gather_into_tensor", C10D), ("hook", "/j/train.py"), ("_engine_run_backward", f"{TORCH}/autograd/graph.py"), STEP], ""),
        # right before, and so for good
        ("collective", [("wait_tensor", f"{TORCH}/distributed/_functional_collectives.py"), ("foreach_all_gather", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py"), STEP], ""),
        ("collective", [("all_gather_tensor", f"{TORCH}/distributed/_functional_collectives.py"), STEP], ""),
        ("collective", [("redistribute", f"{TORCH}/distributed/tensor/_redistribute.py"), ("all_reduce", f"{TORCH}/distributed/_functional_collectives.py"), STEP], ""),
        ("collective", [("monitored_barrier", C10D), STEP], ""),
        ("collective", [("all_gather", C10D), ("all_gather_object", C10D), STEP], ""),
        ("collective", [("broadcast", C10D), ("broadcast_object_list", C10D), STEP], ""),
        ("rendezvous", [("new_group", C10D), STEP], ""),
        ("rendezvous", [("_create_c10d_store", f"{TORCH}/distributed/rendezvous.py"), STEP], ""),
        ("collective", [("barrier", C10D), ("PartialState.wait_for_everyone", f"{LIB}/site-packages/accelerate/state.py"), STEP], ""),
        ("checkpoint", [("write_data", f"{TORCH}/distributed/checkpoint/filesystem.py"), ("save", f"{TORCH}/distributed/checkpoint/state_dict_saver.py"), STEP], ""),
        ("device-wait", [("synchronize", f"{TORCH}/cuda/streams.py"), STEP], ""),
    ],
)  # fmt: skip
def test_sites_of_the_field(kind: str, frames: list[tuple[str, str]], source: str) -> None:
    assert Sites().kind(stack(*frames, source=source)) == kind


def test_operation_is_the_line_where_there_is_no_frame_of_it() -> None:
    one = stack(("reduce", f"{LIB}/site-packages/deepspeed/runtime/engine.py"), STEP, source="handle.wait()")  # fmt: skip
    assert Sites().call(one) == ("handle.wait()", "step train.py:1")
    one = stack(STEP, ("main", "/j/train.py"), source="req.wait()")
    assert Sites().call(one) == ("req.wait()", "step train.py:1")
    one = stack(("_engine_run_backward", f"{TORCH}/autograd/graph.py"), STEP)
    assert Sites().call(one) == ("backward", "step train.py:1")


def test_text_of_a_line_is_looked_up_through_torchs_operator_calls() -> None:
    table = Table()
    frames = [
        ("OpOverload.__call__", f"{TORCH}/_ops.py", 841),
        ("call", "/tmp/inductor/cab.py", 77),
    ]
    table.add([{"thread_id": 1, "frames": [{"name": n, "filename": f, "line": line} for n, f, line in frames]}])  # fmt: skip
    assert table.leaves() == [("/tmp/inductor/cab.py", 77)]
    (made,) = Book().stacks(table.frames, table.stacks, {"/tmp/inductor/cab.py:77": "wait_tensor(buf8)"})  # fmt: skip
    assert made.source == "wait_tensor(buf8)"
    assert Sites().kind(made) == "collective"
