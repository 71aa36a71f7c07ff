"""Wait sites: what a stack means, as data. First match from the innermost frame decides.

A user's file of the same form (`--sites FILE`, TOML, `[[site]]` tables) is asked first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.stacks.frames import Stack

COLLECTIVE, DEVICE, RENDEZVOUS = "collective", "device-wait", "rendezvous"
WAIT_DATA, IDLE, PUT, WORK = "wait-data", "loader-idle", "loader-put", "loader-work"
CHECKPOINT, LOG, LOCK, GC, BACKWARD, CODE, NONE = (
    "checkpoint",
    "net-log",
    "lock",
    "gc",
    "backward",
    "code",
    "none",
)
STORAGE, HELPER, UNKNOWN = "io-storage", "helper", "unknown"
BACKWARD_WAIT = "backward-wait"

WAITS_FOR_PEERS = (COLLECTIVE, DEVICE, RENDEZVOUS, BACKWARD_WAIT)
"""A rank here does nothing but wait for other ranks (or for its device, which waits for them).

No line of the table says backward-wait: it is a backward pass whose threads all rest (model.py).
"""


@dataclass(frozen=True)
class Site:
    """One line of the table. Patterns are regular expressions; an empty one fits everything.

    `function` and `file` are of one frame, `inner` of the function that it called ("-" for none),
    `source` of the text of the innermost line, where that is not Python's own.
    """

    kind: str
    function: str = ""
    file: str = ""
    inner: str = ""
    source: str = ""
    anywhere: bool = True  # False: only as innermost frame

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
        return (
            re.compile(self.function and f"(?:{self.function})$"),
            re.compile(self.file),
            re.compile(self.inner and f"(?:{self.inner})$"),
            re.compile(self.source),
        )

    def fits(self, stack: Stack, index: int) -> bool:
        if index and not self.anywhere:
            return False
        function, file, inner, source = self.patterns
        frame = stack.frames[index]
        if not function.match(frame.function) or not file.search(frame.path):
            return False
        if self.inner and not inner.match(stack.frames[index - 1].function if index else "-"):
            return False
        if not self.source:
            return True
        return index == 0 and not frame.is_standard and bool(source.search(stack.source))


# A wait for the device has no frame of its own: the line's text tells. What it asks the device for
# before it goes on: a number, a copy, a decision.
_DEVICE_LINE = (
    r"\.(item|tolist|numpy|nonzero)\(|\.(all|any)\(\)|synchronize\(|\bprint\(\s*\w*loss|"
    r"\.(cpu|cuda)\((?!.*non_blocking)|\.to\(\s*(device\b|[\"'](cpu|cuda))(?!.*non_blocking)|"
    r"\b(float|int|bool)\(.*(loss|norm|\.(sum|mean|max|min|any|all)\()|"
    r"\b(if|while|assert|not)\b.*(torch\.(isfinite|isnan|isinf|any|all|equal|allclose)\(|found_inf)"
)

TABLE: tuple[Site, ...] = (
    Site(RENDEZVOUS, "init_process_group|_new_process_group_helper|new_group|_store_based_barrier|_new_group_with_tag", r"torch/distributed/distributed_c10d"),
    Site(RENDEZVOUS, "", r"torch/distributed/(rendezvous|elastic/rendezvous|elastic/utils/store)"),
    Site(COLLECTIVE, r"(i?all_|_all_|i?reduce|broadcast|barrier|monitored_barrier|i?gather|scatter|_reduce|i?send|i?recv|batch_isend|_coalescing).*|wait", r"torch/distributed/(distributed_c10d|_functional_collectives|nn/functional|utils|tensor)"),
    Site(COLLECTIVE, "wait_tensor|wait", r"torch/(distributed|_ops)"),
    # DistributedDataParallel: its constructor compares shapes (NCCL's first connection), a forward agrees on buckets and buffers
    Site(COLLECTIVE, "_verify_param_shape_across_processes|_sync_module_states|_sync_params_and_buffers|_broadcast_coalesced", r"torch/distributed/utils\.py$"),
    Site(COLLECTIVE, "_sync_buffers|_sync_module_buffers|_check_and_sync_module_buffers|_default_broadcast_coalesced|_distributed_broadcast_coalesced", r"torch/nn/parallel/distributed\.py$"),
    Site(COLLECTIVE, "_distributed_broadcast_coalesced", ""),
    Site(COLLECTIVE, "_pre_forward", r"torch/nn/parallel/distributed\.py$", anywhere=False),
    Site(DEVICE, "synchronize|wait_event|wait_stream|query", r"torch/(cuda|xpu|npu|accelerator)"),
    Site(DEVICE, "", r"torch/_tensor_str\.py$"),
    # what stands in C++ below the user's line: work.wait(), [x.wait() for x in …], store.get(…)
    Site(RENDEZVOUS, source=r"\b\w*store\w*\.(get|multi_get|wait|barrier)\(", anywhere=False),
    Site(COLLECTIVE, source=r"\.wait\(|\bwait_tensor\b", anywhere=False),
    # our trainer
    Site(WAIT_DATA, "take", r"trainer/data/(loader/)?dataset\.py$"),
    Site(IDLE, "serve", r"trainer/data/(video/)?decode\.py$", inner="-"),
    Site(WORK, "serve", r"trainer/data/(video/)?decode\.py$"),
    Site(CHECKPOINT, "", r"trainer/(checkpoint(/files)?|engine/shards)\.py$"),
    Site(CHECKPOINT, "save|_save.*", r"trainer/(loop|engine/.*)\.py$"),
    Site(LOG, "", r"trainer/(tracking|runlog/wandb_logger)\.py$"),
    # the DataLoaders of torch and torchdata; without workers the rank itself works in fetch
    Site(WORK, "fetch", r"torch/utils/data/_utils/fetch\.py$"),
    Site(WAIT_DATA, "_next_data|_try_get_data|_get_data|__next__|_shutdown_workers", r"(torch/utils/data/dataloader|torchdata/stateful_dataloader/stateful_dataloader)\.py$"),
    Site(IDLE, "_worker_loop", r"", inner="get|-"),
    Site(PUT, "_worker_loop", r"", inner="put"),
    Site(WORK, "_worker_loop", r""),
    Site(HELPER, "_pin_memory_loop|do_one_step|_feed|_serve", r""),
    Site(CHECKPOINT, "save|_save|_legacy_save|save_file|async_save|save_state_dict|save_checkpoint|save_model|save_optimizer", r"(torch/serialization|torch/distributed/checkpoint|safetensors|checkpoint)"),
    Site(CHECKPOINT, "save_checkpoint|save_ckpt|_save_checkpoint|_?rotate_checkpoints", r""),
    Site(LOG, "", r"^(wandb|requests|urllib3|http/client|urllib/request|grpc|tensorboard|mlflow)\b"),
    Site(LOG, "create_connection|getaddrinfo", r"^socket\.py$"),
    # only as innermost frame: Python that runs inside of a backward pass (hooks, recomputation) means what it means elsewhere
    Site(BACKWARD, "_engine_run_backward", r"torch/autograd/graph\.py$", anywhere=False),
    Site(DEVICE, source=_DEVICE_LINE, anywhere=False),
    Site(GC, source=r"\bgc\.collect\(", anywhere=False),
)  # fmt: skip

# Asked only where no other line fits any frame: nearly everything that waits does so in a lock.
LAST: tuple[Site, ...] = (
    Site(
        LOCK,
        "acquire|wait|join|_wait_for_tstate_lock|__enter__|get|put",
        r"^(threading|queue|multiprocessing/(synchronize|queues)|filelock)\b",
        anywhere=False,
    ),
)

_HIDDEN_THREADS = re.compile(
    r"QueueFeederThread|QueueManagerThread|ResourceSharer|pin_memory|Thread-\d+ \(_pin|tqdm|TMonitor|wandb|"
    r"pt_data_pin|asyncio_|ThreadPoolExecutor|MsgRouterThr|ChkStopThr|NetStatThr|IntMsgThr|StreamThr|SystemMonitor"
)


def is_hidden(thread_name: str) -> bool:
    """Threads that wait in every healthy process: counted, not shown."""
    return bool(_HIDDEN_THREADS.search(thread_name))


class Sites:
    """The table with what a user added; remembers what it said of each stack."""

    def __init__(self, extra: Sequence[Site] = ()) -> None:
        self._tables = ((*extra, *TABLE), LAST)
        self._said: dict[int, tuple[Site, int]] = {}
        self._kept: list[Stack] = []  # keeps ids of remembered stacks from being used again

    def kind(self, stack: Stack) -> str:
        return self._look(stack)[0].kind

    def match(self, stack: Stack) -> int:
        """Index of the frame that decided; the innermost where none did."""
        return self._look(stack)[1]

    def _look(self, stack: Stack) -> tuple[Site, int]:
        known = self._said.get(id(stack))
        if known is None:
            known = self._said[id(stack)] = self._decide(stack)
            self._kept.append(stack)
        return known

    def _decide(self, stack: Stack) -> tuple[Site, int]:
        if not stack.frames:
            return Site(NONE), 0
        for table in self._tables:
            for index in range(len(stack.frames)):
                for site in table:
                    if site.fits(stack, index):
                        return site, index
        return Site(CODE), 0

    def call(self, stack: Stack) -> tuple[str, str]:
        """(operation, caller) of a stack that waits for peers: all_reduce, `step train.py:17`."""
        if not stack.frames:
            return "?", "?"
        site, index = self._look(stack)
        first = stack.frames[index]
        operation = "backward" if site.kind == BACKWARD else first.function
        if site.source:  # the line is all there is of the operation
            operation, index = stack.source[:40], index - 1
        for frame in stack.frames[index + 1 :]:
            if not frame.is_library:
                return operation, str(frame)
        return operation, str(first)


def read_sites(path: Path) -> list[Site]:
    """A user's table. Raises `UsageError` with the file and what is wrong."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[import-not-found,no-redef,unused-ignore]
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("site", [])
        sites = [Site(**table) for table in tables]
        for site in sites:
            _ = site.patterns
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError, re.error) as error:
        raise UsageError(
            f"{path}: {error}", hint='[[site]] with kind = "…" and function, file, inner or source'
        ) from None
    return sites
