"""What a stack means, as a table: the first match from the innermost frame decides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.stacks.frames import Stack


class Kind(str, Enum):
    """What a thread does or waits for; BACKWARD_WAIT is set by model.py, not by the table."""

    COLLECTIVE = "collective"
    DEVICE = "device-wait"
    RENDEZVOUS = "rendezvous"
    WAIT_DATA = "wait-data"
    IDLE = "loader-idle"
    PUT = "loader-put"
    WORK = "loader-work"
    CHECKPOINT = "checkpoint"
    LOG = "net-log"
    LOCK = "lock"
    GC = "gc"
    BACKWARD = "backward"
    BACKWARD_WAIT = "backward-wait"
    STORAGE = "io-storage"  # for a user's table
    CODE = "code"
    NONE = "none"
    HELPER = "helper"
    UNKNOWN = "unknown"

    __str__ = str.__str__


WAITS_FOR_PEERS = (Kind.COLLECTIVE, Kind.DEVICE, Kind.RENDEZVOUS, Kind.BACKWARD_WAIT)
"""A rank here only waits for other ranks, or for its device, which waits for them."""


@dataclass(frozen=True)
class Site:
    """One line of the table. Patterns are regular expressions; an empty one matches everything.

    `function` and `file` match one frame, `inner` the function that it called ("-" for none),
    `source` the text of the innermost line outside of Python's library.
    """

    kind: Kind
    function: str = ""
    file: str = ""
    inner: str = ""
    source: str = ""
    anywhere: bool = True  # False: only as innermost frame

    @cached_property
    def patterns(self) -> list[re.Pattern[str]]:
        function = self.function and f"(?:{self.function})$"
        inner = self.inner and f"(?:{self.inner})$"
        return [re.compile(text) for text in (function, self.file, inner, self.source)]

    def fits(self, stack: Stack, index: int) -> bool:
        if index and not self.anywhere:
            return False
        function, file, inner, source = self.patterns
        frame = stack.frames[index]
        if not function.match(frame.function) or not file.search(frame.path):
            return False
        if self.inner and not inner.match(stack.frames[index - 1].function if index else "-"):
            return False
        is_own_line = index == 0 and not frame.is_standard
        return not self.source or (is_own_line and bool(source.search(stack.source)))


# A wait for the device has no frame; the source line shows it by what it needs from the device: a
# number, a copy, a decision.
_DEVICE_LINE = (
    r"\.(item|tolist|numpy|nonzero)\(|\.(all|any)\(\)|synchronize\(|\bprint\(\s*\w*loss|"
    r"\.(cpu|cuda)\((?!.*non_blocking)|\.to\(\s*(device\b|[\"'](cpu|cuda))(?!.*non_blocking)|"
    r"\b(float|int|bool)\(.*(loss|norm|\.(sum|mean|max|min|any|all)\()|"
    r"\b(if|while|assert|not)\b.*(torch\.(isfinite|isnan|isinf|any|all|equal|allclose)\(|found_inf)"
)

TABLE: tuple[Site, ...] = (
    Site(Kind.RENDEZVOUS, "init_process_group|_new_process_group_helper|new_group|_store_based_barrier|_new_group_with_tag", r"torch/distributed/distributed_c10d"),
    Site(Kind.RENDEZVOUS, "", r"torch/distributed/(rendezvous|elastic/rendezvous|elastic/utils/store)"),
    Site(Kind.COLLECTIVE, r"(i?all_|_all_|i?reduce|broadcast|barrier|monitored_barrier|i?gather|scatter|_reduce|i?send|i?recv|batch_isend|_coalescing).*|wait", r"torch/distributed/(distributed_c10d|_functional_collectives|nn/functional|utils|tensor)"),
    Site(Kind.COLLECTIVE, "wait_tensor|wait", r"torch/(distributed|_ops)"),
    # DistributedDataParallel: its constructor compares shapes (NCCL's first connection), a forward
    # agrees on buckets and buffers
    Site(Kind.COLLECTIVE, "_verify_param_shape_across_processes|_sync_module_states|_sync_params_and_buffers|_broadcast_coalesced", r"torch/distributed/utils\.py$"),
    Site(Kind.COLLECTIVE, "_sync_buffers|_sync_module_buffers|_check_and_sync_module_buffers|_default_broadcast_coalesced|_distributed_broadcast_coalesced", r"torch/nn/parallel/distributed\.py$"),
    Site(Kind.COLLECTIVE, "_distributed_broadcast_coalesced", ""),
    Site(Kind.COLLECTIVE, "_pre_forward", r"torch/nn/parallel/distributed\.py$", anywhere=False),
    Site(Kind.DEVICE, "synchronize|wait_event|wait_stream|query", r"torch/(cuda|xpu|npu|accelerator)"),
    Site(Kind.DEVICE, "", r"torch/_tensor_str\.py$"),
    # frames of C and C++ (py-spy --native)
    Site(Kind.COLLECTIVE, r"gloo::.*|c10d::(ProcessGroup|Work|Reducer|symmetric_memory).*|p?nccl(Group|All|Reduce|Broadcast|Bcast|Send|Recv|Comm).*|P?MPI_(?!Init|Finalize).*|ucp_worker_\w+", ""),
    Site(Kind.RENDEZVOUS, r"c10d::\w*Store::.*|P?MPI_(Init|Finalize)\w*", ""),
    Site(Kind.DEVICE, r"(cu|cuda|hip)(Stream|Device|Ctx|Event)Synchronize\w*|(cu|cuda|hip)Memcpy\w*|c10::cuda::.*synchronize.*|at::native::_local_scalar_dense\w*.*", ""),
    # what is in C++ below the user's line: work.wait(), [x.wait() for x in …], store.get(…)
    Site(Kind.RENDEZVOUS, source=r"\b\w*store\w*\.(get|multi_get|wait|barrier)\(", anywhere=False),
    Site(Kind.COLLECTIVE, source=r"\.wait\(|\bwait_tensor\b", anywhere=False),
    # our trainer
    Site(Kind.WAIT_DATA, "take", r"trainer/data/loader/loader\.py$"),
    Site(Kind.IDLE, "serve", r"trainer/data/video/decode_process\.py$", inner="-"),
    Site(Kind.WORK, "serve", r"trainer/data/video/decode_process\.py$"),
    Site(Kind.CHECKPOINT, "", r"trainer/(checkpoint/\w+|engine/shards)\.py$"),
    Site(Kind.CHECKPOINT, "save", r"trainer/loop\.py$"),
    Site(Kind.LOG, "", r"trainer/(journal|trackers/\w+)\.py$"),
    # the DataLoaders of torch and torchdata; without workers the rank itself works in fetch
    Site(Kind.WORK, "fetch", r"torch/utils/data/_utils/fetch\.py$"),
    Site(Kind.WAIT_DATA, "_next_data|_try_get_data|_get_data|__next__|_shutdown_workers", r"(torch/utils/data/dataloader|torchdata/stateful_dataloader/stateful_dataloader)\.py$"),
    Site(Kind.IDLE, "_worker_loop", r"", inner="get|-"),
    Site(Kind.PUT, "_worker_loop", r"", inner="put"),
    Site(Kind.WORK, "_worker_loop", r""),
    Site(Kind.HELPER, "_pin_memory_loop|do_one_step|_feed|_serve", r""),
    Site(Kind.CHECKPOINT, "save|_save|_legacy_save|save_file|async_save|save_state_dict|save_checkpoint|save_model|save_optimizer", r"(torch/serialization|torch/distributed/checkpoint|safetensors|checkpoint)"),
    Site(Kind.CHECKPOINT, "save_checkpoint|save_ckpt|_save_checkpoint|_?rotate_checkpoints", r""),
    Site(Kind.LOG, "", r"^(wandb|requests|urllib3|http/client|urllib/request|grpc|tensorboard|mlflow)\b"),
    Site(Kind.LOG, "create_connection|getaddrinfo", r"^socket\.py$"),
    # only as innermost frame: Python inside of a backward pass (hooks, recomputation) counts itself
    Site(Kind.BACKWARD, "_engine_run_backward", r"torch/autograd/graph\.py$", anywhere=False),
    Site(Kind.BACKWARD, "backward|grad", r"torch/autograd/__init__\.py$", anywhere=False),  # < 2.3
    Site(Kind.DEVICE, source=_DEVICE_LINE, anywhere=False),
    Site(Kind.GC, source=r"\bgc\.collect\(", anywhere=False),
)  # fmt: skip

# Only where no other line matches any frame: nearly everything that waits does so in a lock.
_WAITS = "acquire|wait|join|_wait_for_tstate_lock|__enter__|get|put"
_LOCKS = r"^(threading|queue|multiprocessing/(synchronize|queues)|filelock)\b"
LAST = Site(Kind.LOCK, _WAITS, _LOCKS, anywhere=False)

# A rank that waits for nobody of its job: it sleeps, or waits for a person or for requests.
_PAUSE_LINE = re.compile(r"\b(sleep|input|readline|accept)\(")
_PAUSE = re.compile(r"interact|interaction|cmdloop|readline|serve_forever|run_forever")

# Threads that wait in every healthy process: counted, not shown.
HIDDEN_THREADS = re.compile(
    r"QueueFeederThread|QueueManagerThread|ResourceSharer|pin_memory|Thread-\d+ \(_pin|tqdm"
    r"|TMonitor|wandb|tracker|pt_data_pin|asyncio_|ThreadPoolExecutor|MsgRouterThr|ChkStopThr"
    r"|NetStatThr|IntMsgThr|StreamThr|SystemMonitor"
)


class Sites:
    """The table with a user's additions; remembers the answer for each stack."""

    def __init__(self, extra: Sequence[Site] = ()) -> None:
        self._tables = ((*extra, *TABLE), (LAST,))
        # By id: hashing a stack takes as long as it is deep. The stack itself keeps its id in use.
        self._known: dict[int, tuple[Stack, tuple[Site, int]]] = {}

    def kind(self, stack: Stack) -> Kind:
        return self._decide(stack)[0].kind

    def match(self, stack: Stack) -> int:
        """Index of the frame that decided; the innermost where none did."""
        return self._decide(stack)[1]

    def _decide(self, stack: Stack) -> tuple[Site, int]:
        if id(stack) not in self._known:
            self._known[id(stack)] = (stack, self._find(stack))
        return self._known[id(stack)][1]

    def _find(self, stack: Stack) -> tuple[Site, int]:
        matches = (
            (site, index)
            for table in self._tables
            for index in range(len(stack.frames))
            for site in table
            if site.fits(stack, index)
        )
        return next(matches, (Site(Kind.CODE if stack.frames else Kind.NONE), 0))

    def call(self, stack: Stack) -> tuple[str, str]:
        """(operation, caller) of a stack that waits for peers: all_reduce, `step train.py:17`."""
        if not stack.frames:
            return "?", "?"
        site, index = self._decide(stack)
        first = stack.frames[index]
        operation = "backward" if site.kind == Kind.BACKWARD else first.function
        if site.source:  # the line is all there is of the operation
            operation, index = stack.source[:40], index - 1
        outer = (frame for frame in stack.frames[index + 1 :] if not frame.is_library)
        return operation, str(next(outer, first))


def pauses(stack: Stack) -> bool:
    """Whether it sleeps, or waits for something that is no part of a training."""
    if _PAUSE_LINE.search(stack.source):
        return True
    return any(_PAUSE.fullmatch(frame.function) for frame in stack.frames)


def read_sites(path: Path) -> list[Site]:
    """A user's table. Raises `UsageError` with the file and the mistake."""
    from clusterctl.defaults import parse_toml
    from trainer.runlog.run_files import read_chosen

    try:
        tables = parse_toml(read_chosen(path).decode()).get("site", [])
        return [_read_site(table) for table in tables]
    except (OSError, ValueError, TypeError, AttributeError, re.error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        hint = '[[site]] with kind = "…" and function, file, inner or source'
        raise UsageError(f"{path}: {reason}", hint=hint) from None


def _read_site(table: Mapping[str, Any]) -> Site:
    """Raises `ValueError`, `TypeError` and `re.error`."""
    kind = table.get("kind", "")
    keys = [("key", key, [field.name for field in fields(Site)]) for key in table]
    for what, name, known in [*keys, ("kind", kind, [one.value for one in Kind])]:
        if name not in known:
            raise ValueError(f"unknown {what} {name!r}: must be one of {', '.join(known)}")
    site = Site(**{**table, "kind": Kind(kind)})
    _ = site.patterns
    return site
