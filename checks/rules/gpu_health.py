"""GPUs one by one: memory errors, remapped rows, what the driver asks for, throttling, heat.

A card that has no such thing (a GPU without ECC or NVLink) is left out; a value that the driver
cannot read although it should is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from checks.facts import NOT_ASKED, Fleet, Gpu, GpuHealth, Maybe, NodeFacts, Unknown
from checks.finding import Action, Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.runner import check

Judge = Callable[[Gpu, GpuHealth], "Finding | Unknown | None"]


def per_gpu(node: NodeFacts, judge: Judge, good: str) -> Iterator[Finding]:
    """One finding for GPUs of equal judgement: `GPU 0,3: …`. `judge` gives None for a good one."""
    gpus = node.gpus
    if gpus.state in ("none", "no-tool"):
        yield skip("no GPU")
        return
    if not gpus.gpus:
        yield unknown(f"GPUs: {gpus.summary}", because="gpu.driver")
        return
    if any(gpu.health == NOT_ASKED for gpu in gpus.gpus):
        yield skip(NOT_ASKED.reason)
        return
    bad: dict[Finding, list[str]] = {}
    good_models: set[Maybe[str]] = set()
    lacking: list[tuple[Gpu, str, Unknown]] = []
    for position, gpu in enumerate(gpus.gpus):
        health, label = gpu.health, label_of(gpu, position)
        if isinstance(health, Unknown):
            found: Finding | Unknown | None = unknown(
                f"its state: {health.reason}", because="gpu.details"
            )
        else:
            found = judge(gpu, health)
        if found is None:
            good_models.add(gpu.name)
        elif isinstance(found, Finding):
            bad.setdefault(found, []).append(label)
        elif found.is_absence:
            lacking.append((gpu, label, found))
        else:
            bad.setdefault(unknown(found.reason), []).append(label)
    for gpu, label, why in lacking:
        if gpu.name in good_models:
            said = f"{why.reason}, although others of its model tell"
            bad.setdefault(unknown(said), []).append(label)
    for one, labels in bad.items():
        yield replace(one, evidence=f"GPU {','.join(labels)}: {one.evidence}")
    if gpus.state == "partial" and not bad:
        yield unknown(f"the other GPUs: {gpus.summary}", because="gpu.driver")
    elif not bad:
        yield passed(good) if good_models else skip(f"no GPU has that: {lacking[0][2].reason}")


def label_of(gpu: Gpu, position: int) -> str:
    return str(position if isinstance(gpu.index, Unknown) else gpu.index)


def unread(*values: Maybe[object]) -> Unknown | None:
    """The first value that the card should tell and that cannot be read."""
    unknowns = (value for value in values if isinstance(value, Unknown))
    return next((one for one in unknowns if not one.is_absence), None)


def first_unknown(*values: Maybe[object]) -> Unknown | None:
    """Why a card cannot pass: a value that cannot be read, or none at all."""
    unknowns = [value for value in values if isinstance(value, Unknown)]
    return unread(*values) or (unknowns[0] if len(unknowns) == len(values) else None)


@check(
    "gpu.details",
    advisory=True,
    bad="UNKNOWN if the driver does not tell the state of a GPU",
    how="NVML, else nvidia-smi -q",
    fix="nvidia-smi -q on that node",
)
def gpu_details(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """The driver tells the state of every GPU: all other checks of GPUs read it."""
    gpus = node.gpus
    if gpus.state in ("none", "no-tool"):
        yield skip("no GPU")
        return
    healths = [gpu.health for gpu in gpus.gpus]
    silent = [one for one in healths if isinstance(one, Unknown)]
    if not healths:
        yield unknown(f"GPUs: {gpus.summary}", because="gpu.driver")
    elif NOT_ASKED in silent:
        yield skip(NOT_ASKED.reason)
    elif silent:
        yield unknown(
            f"{len(silent)} of {len(healths)} GPUs: {silent[0].reason}", fix="nvidia-smi -q"
        )
    elif gpus.state == "partial":
        yield unknown(f"the other GPUs: {gpus.summary}", because="gpu.driver")
    else:
        yield passed(f"{len(healths)} GPUs tell their state")


@check(
    "gpu.ecc_mode",
    advisory=True,
    bad="FAIL if ECC is off",
    how="ECC mode of NVML or nvidia-smi -q",
    fix="sudo nvidia-smi -e 1, then reboot",
)
def ecc_mode(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """ECC is on.

    Without it a flipped bit is a wrong number in the weights and nobody is told.
    """

    def judge(_gpu: Gpu, health: GpuHealth) -> Finding | Unknown | None:
        if isinstance(health.ecc, Unknown):
            return health.ecc
        fix = "sudo nvidia-smi -e 1; reboot"
        return None if health.ecc else fail("ECC is off", fix=fix, action=Action.REBOOT)

    yield from per_gpu(node, judge, "ECC is on")


@check(
    "gpu.ecc_errors",
    advisory=True,
    bad="WARN over 20 million corrected; FAIL on any uncorrected since the driver was loaded, on "
    "more than 4 in SRAM in the card's life",
    how="ECC counters of NVML or nvidia-smi -q",
    fix="sudo nvidia-smi --gpu-reset -i N on an idle GPU; service if they come back",
)
def ecc_errors(node: NodeFacts, limits: Profile) -> Iterator[Finding]:
    """No memory error that ECC could not correct.

    It kills the process that owns the page, and more follow on the same card.
    """

    def judge(_gpu: Gpu, health: GpuHealth) -> Finding | Unknown | None:
        now, sram, mild = (
            health.uncorrected_volatile,
            health.sram_uncorrected_aggregate,
            health.corrected_volatile,
        )
        fix = "sudo nvidia-smi --gpu-reset -i N  (idle GPU)"
        if isinstance(now, int) and now > 0:
            return fail(
                f"{now} uncorrected memory errors",
                value=str(now),
                expected="0",
                fix=fix,
                action=Action.RESET_GPU,
            )
        if isinstance(sram, int) and sram > limits.ecc_sram_aggregate_fail:
            return fail(
                f"{sram} uncorrected SRAM errors in its life",
                value=str(sram),
                expected=f"at most {limits.ecc_sram_aggregate_fail:g}",
                fix="service: replace the card",
                action=Action.SERVICE,
            )
        if health.sram_threshold_exceeded is True:
            return fail("SRAM error threshold exceeded", fix="service", action=Action.SERVICE)
        if isinstance(mild, int) and mild > limits.ecc_corrected_warn:
            return warn(
                f"{mild} corrected memory errors",
                value=str(mild),
                expected=f"{limits.ecc_corrected_warn:g}",
            )
        return first_unknown(now, sram) or unread(health.sram_threshold_exceeded, mild)

    yield from per_gpu(node, judge, "no uncorrected error")


@check(
    "gpu.remap",
    advisory=True,
    bad="WARN if rows were remapped for uncorrected errors; FAIL if a remap is pending or failed",
    how="remapped rows (retired pages on older cards)",
    fix="reset the GPU when pending; service when failed",
)
def remap(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """No memory row waits for its replacement.

    Until the reset the bad row stays in use; when the spare rows run out the card has to go.
    """

    def judge(_gpu: Gpu, health: GpuHealth) -> Finding | Unknown | None:
        if health.remap_failure is True:
            return fail("a row could not be remapped", fix="service", action=Action.SERVICE)
        if health.remap_pending is True or health.pages_pending is True:
            return fail(
                "a row waits to be remapped",
                fix="sudo nvidia-smi --gpu-reset -i N  (idle GPU)",
                action=Action.RESET_GPU,
            )
        rows = health.remapped_uncorrectable
        if isinstance(rows, int) and rows > 0:
            return warn(f"{rows} rows were remapped for uncorrected errors", value=str(rows))
        waits = first_unknown(health.remap_pending, health.pages_pending)
        return waits or unread(health.remap_failure, rows)

    yield from per_gpu(node, judge, "no row waits to be remapped")


@check(
    "gpu.recovery",
    advisory=True,
    bad="FAIL unless the action is None",
    how="GPU recovery action and reset status of the driver (from 565 on)",
    fix="what the driver names: reset, reboot, drain",
)
def recovery(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """The driver asks for no reset or reboot."""

    def judge(_gpu: Gpu, health: GpuHealth) -> Finding | Unknown | None:
        action = health.recovery_action
        if isinstance(action, str) and action != "None":
            what = Action.REBOOT if "reboot" in action.lower() else Action.RESET_GPU
            return fail(
                f"the driver asks for: {action}",
                value=action,
                expected="None",
                fix=f"{action.lower()} the GPU",
                action=what,
            )
        if health.reset_required is True:
            return fail(
                "a reset is required",
                fix="sudo nvidia-smi --gpu-reset -i N",
                action=Action.RESET_GPU,
            )
        return first_unknown(action, health.reset_required)

    yield from per_gpu(node, judge, "no recovery is asked for")


@check(
    "gpu.throttle",
    advisory=True,
    bad=(
        "WARN on software thermal slowdown, FAIL on hardware slowdown, hardware thermal, power "
        "brake"
    ),
    how="clocks event reasons, bit by bit: idle and power cap are harmless",
    fix="airflow, power supply; nvidia-smi -q -d PERFORMANCE",
)
def throttle(node: NodeFacts, _limits: Profile) -> Iterator[Finding]:
    """No GPU is slowed down by heat or power.

    One slow GPU sets the pace of all: every step waits for it.
    """
    hard = ("hw slowdown", "hw thermal", "power brake")

    def judge(_gpu: Gpu, health: GpuHealth) -> Finding | Unknown | None:
        reasons = health.throttle
        if isinstance(reasons, Unknown):
            return reasons
        fix = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; airflow, power supply"
        if found := [one for one in reasons if one in hard]:
            return fail(
                f"slowed down: {', '.join(found)}",
                value=",".join(found),
                fix=fix,
                action=Action.SERVICE,
            )
        if "sw thermal" in reasons:
            return warn("slowed down by the driver for heat", value="sw thermal", fix=fix)
        return None

    yield from per_gpu(node, judge, "no slowdown")


@check(
    "gpu.temperature",
    scope="fleet",
    advisory=True,
    bad="WARN at 5 degrees or less to the slowdown, or 15 above the fleet's median; FAIL at 0",
    how="margin to the slowdown (Hopper prints the degrees left, not a limit)",
    fix="fans, filters, the coolant's flow",
)
def temperature(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """No GPU is near its limit or much hotter than its peers."""
    warm = sorted(
        gpu.temperature_c
        for node in fleet.reached
        for gpu in node.gpus.gpus
        if not isinstance(gpu.temperature_c, Unknown)
    )
    middle = warm[len(warm) // 2] if len(warm) > 8 else None

    def judge(gpu: Gpu, health: GpuHealth) -> Finding | Unknown | None:
        left, now = health.margin_c, gpu.temperature_c
        if not isinstance(left, Unknown) and left <= limits.gpu_margin_warn_c:
            bad = fail if left <= 0 else warn
            return bad(
                f"{left:.0f} °C left to the slowdown",
                value=f"{left:.0f}",
                expected=f"over {limits.gpu_margin_warn_c:g}",
                fix="cooling",
            )
        known = middle is not None and not isinstance(now, Unknown)
        if known and now > middle + limits.gpu_hotter_warn_c:  # type: ignore[operator]
            return warn(
                f"{now:.0f} °C, the fleet's median is {middle:.0f} °C",
                value=f"{now:.0f}",
                expected=f"{middle:.0f}",
                source="majority",
                fix="cooling; is somebody computing on it?",
            )
        return first_unknown(left) if middle is None else first_unknown(left, now)

    for node in fleet.reached:
        for one in per_gpu(node, judge, "cool enough"):
            yield replace(one, nodes=(node.name,))
