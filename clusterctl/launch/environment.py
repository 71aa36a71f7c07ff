"""The environment of the ranks: an allowlist, additions, and what is never shown.

A shell's proxy passwords, tokens and LD_LIBRARY_PATH do not belong on every node. Values travel on
the agent's stdin, never in an argv.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.payload.secrets.marks import HIDDEN, is_secret
from clusterctl.payload.secrets.mask import hide
from clusterctl.runs.hidden_values import SHORTEST

PASSED_PREFIXES = ("NCCL_", "GLOO_", "OMP_", "CUDA_", "TORCH_", "PYTORCH_", "WANDB_", "HF_")

# Set by the starter and the agent; another value would break the rendezvous or the clean-up.
_RESERVED = re.compile(
    "RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|MASTER_ADDR|MASTER_PORT|"
    "CLUSTERCTL_.*"
)
# Of the flight recorder: newer torch warns of the older name, which its ranks' starter hides.
OLDER_OF = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}
_ALLOCATOR, _OLDER_NAME = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
AUTO = "auto"  # decided by the agent on each node

_WATCHDOG = {
    "NCCL_DEBUG": "WARN",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# NCCL environment of the recorded H100 runs (8 rails, mlx5_0 is the frontend card).
PRESETS: Mapping[str, Mapping[str, str]] = {
    "none": {},
    "h100-ib": {
        **_WATCHDOG,
        "NCCL_P2P_LEVEL": "NVL",
        "NCCL_NET_GDR_LEVEL": "PIX",
        # The value begins with '=': exact names, so that mlx5_1 does not also choose mlx5_10.
        "NCCL_IB_HCA": "=mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8",
        "NCCL_IB_PCI_RELAXED_ORDERING": "1",
        "NCCL_SOCKET_IFNAME": "eno1",
    },
    "ethernet": {**_WATCHDOG, "NCCL_IB_DISABLE": "1"},
}

BY_OPTION = "--env"


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    value: str
    origin: str  # "default", "preset NAME", "facts", "your environment" or "--env"

    @property
    def shown(self) -> str:
        return HIDDEN if self.is_hidden else hide(self.value)

    @property
    def is_hidden(self) -> bool:
        """By its name, or because it comes from --env, where it may be any secret."""
        return self.origin == BY_OPTION or is_secret(self.name)


@dataclass(frozen=True, slots=True)
class Environment:
    """All variables the head decides, by name; `values()` is what the agent gets."""

    variables: tuple[Variable, ...]

    def values(self) -> dict[str, str]:
        return {variable.name: variable.value for variable in self.variables}

    def shown(self) -> dict[str, str]:
        return {variable.name: variable.shown for variable in self.variables}

    def redact(self, text: str) -> str:
        """`text` without the values of secrets: a rank's last lines may quote them."""
        hidden = self.hidden()
        lines = {line.strip() for value in hidden for line in value.splitlines()}
        long = [value for value in {*hidden, *lines} if len(value) >= SHORTEST]
        for value in sorted(long, key=len, reverse=True):  # one may be a part of another
            text = text.replace(value, HIDDEN)
        return hide(text)

    def hidden(self) -> list[str]:
        """Values that are never shown."""
        return [variable.value for variable in self.variables if variable.is_hidden]


def parse_assignments(pairs: Iterable[str], head: Mapping[str, str]) -> dict[str, str]:
    """Values of --env `K=V`, and of --env `K` from the head's environment. Raises `UsageError`."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            shown = f"{name}=…" if equals else repr(pair)
            raise UsageError(f"--env {shown} is neither NAME=VALUE nor NAME")
        if _RESERVED.fullmatch(name):
            raise UsageError(f"--env {name}: this name is set by the launcher on every rank")
        if not equals:
            if name not in head:
                hint = f"export {name} first, or give --env {name}=VALUE"
                raise UsageError(f"--env {name}: your environment has no such variable", hint=hint)
            value = head[name]
        if "\0" in value:
            raise UsageError(f"--env {name}: a value cannot hold a zero byte")
        values[name] = value
    return values


def build(
    head: Mapping[str, str],
    *,
    assignments: Iterable[str] = (),
    preset: str = "none",
    facts: Mapping[str, str] | None = None,
    device: str = "auto",
    run_dir: Path,
) -> Environment:
    """Variables by name. Precedence: --env, the head's environment, facts, preset, default.

    `facts` is what `clusterctl env` recommends. The head's environment overrides the preset: there,
    a variable can only be meant as a correction. Raises `UsageError`.
    """
    if preset not in PRESETS:
        raise UsageError(f"--nccl {preset} is not one of: {', '.join(PRESETS)}")
    chosen: dict[str, Variable] = {}

    def take(values: Mapping[str, str], origin: str) -> None:
        chosen.update((name, Variable(name, value, origin)) for name, value in values.items())

    take(_defaults(device, run_dir), "default")
    take(PRESETS[preset], f"preset {preset}")
    take(facts or {}, "facts")
    prefixes = (*PASSED_PREFIXES, "TOKENIZERS_PARALLELISM")
    given = {name: head[name] for name in head if name.startswith(prefixes)}
    given.pop(
        "CUDA_VISIBLE_DEVICES", None
    )  # which of this machine's GPUs says nothing of the nodes'
    take(given, "your environment")
    if device == "cpu":
        take({"CUDA_VISIBLE_DEVICES": ""}, "--device cpu")
    if device in ("cpu", "cuda"):
        take({"TRAINER_DEVICE": device}, "--device")
    take(parse_assignments(assignments, head), BY_OPTION)
    if _OLDER_NAME in chosen and chosen[_ALLOCATOR].origin == "default":
        del chosen[_ALLOCATOR]  # torch would read it and not the user's
    for pair in OLDER_OF.items():
        for name, other in (pair, pair[::-1]):  # a user's value counts by either name
            if chosen[name].origin == "default" and chosen[other].origin != "default":
                chosen[name] = replace(chosen[other], name=name)
    return Environment(tuple(chosen[name] for name in sorted(chosen)))


def _defaults(device: str, run_dir: Path) -> dict[str, str]:
    return {
        "PYTHONUNBUFFERED": "1",  # else a killed rank takes its last lines along
        "PYTHONFAULTHANDLER": "1",  # a segfault leaves a Python stack in the rank's log
        "PYTHONSAFEPATH": "1",  # nothing is imported from the folder that ranks start in
        "TOKENIZERS_PARALLELISM": "false",  # it deadlocks in forked loader workers
        # torch's default is all cores for every process. On CPU one thread each, since nodes may
        # share a machine there; with GPUs the agent divides its cores by its slots.
        "OMP_NUM_THREADS": "1" if device == "cpu" else AUTO,
        # Hundreds of shapes of batches split the allocator's blocks until none is large enough.
        _ALLOCATOR: "expandable_segments:True",
        # gloo takes the interface of the host's own name, which Debian maps to 127.0.1.1.
        "GLOO_SOCKET_IFNAME": AUTO,
        # A collective that times out leaves its flight record where dump-stacks looks for it.
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{run_dir}/stacks/nccl_trace_rank_",
        "TORCH_FR_DUMP_TEMP_FILE": f"{run_dir}/stacks/nccl_trace_rank_",
    }
