"""GPUs one by one: memory errors, remapped rows, what the driver asks for, throttling, heat.

A card that has no such thing (a GPU without ECC or NVLink) is left out; a value that the driver
cannot read although it should is UNKNOWN.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace

from checks.compare import each_node
from checks.facts import NOT_ASKED, Fleet, Gpu, GpuFacts, GpuHealth, Maybe, Unknown, known
from checks.facts.gpu import broken
from checks.finding import Action, Finding, fail, passed, skip, unknown, warn
from checks.profile import Profile
from checks.registry import Rule, check
from checks.rules.gpu import by_driver, need_answer, reset_fix, silent_others

Judgement = Finding | Unknown | None  # None: the GPU is good


def each_gpu(good: str) -> Callable[[Callable[..., Judgement]], Rule]:
    """Turn a judge of one GPU into a rule, see `per_gpu`."""
    return lambda judge: functools.wraps(judge)(lambda gpus: per_gpu(gpus, judge, good))


def per_gpu(
    gpus: GpuFacts, judge: Callable[[Gpu, GpuHealth], Judgement], good: str
) -> Iterator[Finding]:
    """One finding for GPUs of equal judgement: `GPU 0,3: …`."""
    need_answer(gpus)
    if any(gpu.health == NOT_ASKED for gpu in gpus.gpus):
        yield skip(NOT_ASKED)
        return
    bad: dict[Finding, list[str]] = {}
    good_models: set[Maybe[str]] = set()
    absent: list[tuple[Gpu, str, Unknown]] = []
    for position, gpu in enumerate(gpus.gpus):
        health, label = gpu.health, gpu.label(position)
        if isinstance(health, Unknown):
            found: Judgement = unknown(f"its state: {health}", because="gpu.details")
        else:
            found = judge(gpu, health)
        if found is None:
            good_models.add(gpu.name)
        elif isinstance(found, Finding):
            bad.setdefault(found, []).append(label)
        elif broken(found):
            bad.setdefault(by_driver(found), []).append(label)
        elif found.is_absence:
            absent.append((gpu, label, found))
        else:
            bad.setdefault(unknown(found), []).append(label)
    for gpu, label, why in absent:
        if gpu.name in good_models:
            text = f"{why}, although others of its model report it"
            bad.setdefault(unknown(text), []).append(label)
    for one, labels in bad.items():
        yield replace(one, evidence=f"GPU {','.join(labels)}: {one.evidence}")
    if not bad:
        content = passed(good) if good_models else skip(f"no GPU has that: {absent[0][2]}")
        yield silent_others(gpus) or content


def unread(*values: Maybe[object]) -> Unknown | None:
    """The first value that the card has and that cannot be read."""
    unknowns = (value for value in values if isinstance(value, Unknown))
    return next((one for one in unknowns if not one.is_absence), None)


def first_unknown(*values: Maybe[object]) -> Unknown | None:
    """Why a card cannot pass: a value that cannot be read, or none at all."""
    unknowns = [value for value in values if isinstance(value, Unknown)]
    return unread(*values) or (unknowns[0] if len(unknowns) == len(values) else None)


@check("gpu.details", advisory=True)
def gpu_details(gpus: GpuFacts) -> Finding:
    """The driver reports the state of every GPU: all other checks of GPUs read it.

    Bad: UNKNOWN if the driver does not report the state of a GPU
    How: NVML, else nvidia-smi -q
    Fix: nvidia-smi -q on that node
    """
    need_answer(gpus)
    count = len(gpus.gpus)
    silent = [gpu.health for gpu in gpus.gpus if isinstance(gpu.health, Unknown)]
    if NOT_ASKED in silent:
        return skip(NOT_ASKED)
    if silent:
        return unknown(f"{len(silent)} of {count} GPUs: {silent[0]}", fix="nvidia-smi -q")
    return silent_others(gpus) or passed(f"{count} GPUs report their state")


@check("gpu.ecc_errors", advisory=True)
def ecc_errors(gpus: GpuFacts, limits: Profile) -> Iterator[Finding]:
    """No memory error that ECC could not correct.

    Why: It kills the process that owns the page, and more follow on the same card.
    Bad: WARN over 20 million corrected; FAIL any uncorrected since driver load, over 4 in SRAM ever
    How: ECC counters of NVML or nvidia-smi -q
    Fix: sudo nvidia-smi --gpu-reset -i N  (idle GPU); service if they come back
    """
    most_sram, most_corrected = limits.ecc_sram_aggregate_fail, limits.ecc_corrected_warn

    def judge(_gpu: Gpu, health: GpuHealth) -> Judgement:
        now, corrected = health.uncorrected_volatile, health.corrected_volatile
        sram, is_over = health.sram_uncorrected_aggregate, health.sram_threshold_exceeded
        if isinstance(now, int) and now > 0:
            return fail(f"{now} uncorrected memory errors", now, 0, action=Action.RESET_GPU)
        if isinstance(sram, int) and sram > most_sram:
            text, fix = f"{sram} uncorrected SRAM errors in its life", "service: replace the card"
            return fail(text, sram, f"at most {most_sram:g}", fix=fix, action=Action.SERVICE)
        if is_over is True:
            return fail("SRAM error threshold exceeded", fix="service", action=Action.SERVICE)
        if isinstance(corrected, int) and corrected > most_corrected:
            return warn(f"{corrected} corrected memory errors", corrected, most_corrected, fix="")
        return first_unknown(now, sram) or unread(is_over, corrected)

    return per_gpu(gpus, judge, "no uncorrected error")


@check("gpu.remap", advisory=True)
@each_gpu("no row waits to be remapped")
def remap(_gpu: Gpu, health: GpuHealth) -> Judgement:
    """No memory row waits for its replacement.

    Why: Until the reset the bad row stays in use; when the spare rows run out the card has to go.
    Bad: WARN if rows were remapped for uncorrected errors; FAIL if a remap is pending or failed, or
        the repair of a channel or of a part of the processor (TPC) is pending
    How: remapped rows (retired pages on older cards), pending repairs
    Fix: sudo nvidia-smi --gpu-reset -i N  (idle GPU); service if it failed
    """
    rows = health.remapped_uncorrectable
    if health.remap_failure is True:
        return fail("a row could not be remapped", fix="service", action=Action.SERVICE)
    if health.remap_pending is True or health.pages_pending is True:
        return fail("a row waits to be remapped", action=Action.RESET_GPU)
    if health.channel_repair is True:
        return fail("a memory channel waits to be repaired", action=Action.RESET_GPU)
    if health.tpc_repair is True:
        return fail("a part of the processor (TPC) waits to be repaired", action=Action.RESET_GPU)
    if isinstance(rows, int) and rows > 0:
        return warn(f"{rows} rows were remapped for uncorrected errors", rows, fix="")
    waits = first_unknown(health.remap_pending, health.pages_pending)
    repairs = (health.channel_repair, health.tpc_repair)
    return waits or unread(health.remap_failure, rows, *repairs)


@check("gpu.recovery", advisory=True)
@each_gpu("no recovery is needed")
def recovery(_gpu: Gpu, health: GpuHealth) -> Judgement:
    """The driver asks for no reset or reboot.

    Bad: FAIL unless the action is None
    How: GPU recovery action and reset status of the driver (from 565 on)
    Fix: what the driver names: reset, reboot, drain
    """
    asked = health.recovery_action
    if isinstance(asked, str) and asked != "None":
        fix, action = recovery_fix(asked)
        return fail(f"the driver asks for: {asked}", asked, "None", fix=fix, action=action)
    if health.reset_required is True:
        return fail("a reset is required", fix=reset_fix(), action=Action.RESET_GPU)
    return first_unknown(asked, health.reset_required)


def recovery_fix(asked: str) -> tuple[str, Action]:
    """What to do where the driver asks for `Reset`, `Drain P2P`, …"""
    words, reset = asked.lower().replace("_", " "), reset_fix()
    if "reboot" in words:
        return "reboot the node", Action.REBOOT
    if "p2p" in words:
        fix = "end what runs on the node's GPUs (clusterctl kill); it needs no reset"
        return fix, Action.RESTART_APP
    if "imex" in words:
        fix = "sudo systemctl restart nvidia-imex on all nodes of the domain"
        return fix, Action.RESTART_APP
    return (f"end what runs on it, then {reset}" if "drain" in words else reset), Action.RESET_GPU


@check("gpu.throttle", advisory=True)
@each_gpu("no slowdown")
def throttle(_gpu: Gpu, health: GpuHealth) -> Judgement:
    """No GPU is slowed down by heat or power.

    Why: One slow GPU sets the pace of all: every step waits for it.
    Bad: WARN on software thermal slowdown, FAIL on hardware slowdown, hardware thermal, power brake
    How: clocks event reasons, bit by bit: idle and power cap are harmless
    Fix: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; airflow, power supply
    """
    reasons = health.throttle
    if isinstance(reasons, Unknown):
        return reasons
    if hard := [one for one in reasons if one in ("hw slowdown", "hw thermal", "power brake")]:
        return fail(f"slowed down: {', '.join(hard)}", ",".join(hard), action=Action.SERVICE)
    if "sw thermal" in reasons:
        return warn("slowed down by the driver for heat", "sw thermal")
    return None


@check("gpu.temperature", "fleet", advisory=True)
def temperature(fleet: Fleet, limits: Profile) -> Iterator[Finding]:
    """No GPU is near its limit or much hotter than its peers.

    Bad: WARN at 5 degrees or less to the slowdown, or 15 above the fleet's median; FAIL at 0
    How: margin to the slowdown (Hopper prints the degrees left, not a limit)
    Fix: fans, filters, the coolant's flow
    """
    gpus = [gpu for node in fleet.reached for gpu in node.gpus.gpus]
    warm = known(gpu.temperature_c for gpu in gpus)
    median = statistics.median_high(warm) if len(warm) > 8 else None

    def judge(gpu: Gpu, health: GpuHealth) -> Judgement:
        left, now = health.margin_c, gpu.temperature_c
        if not isinstance(left, Unknown) and left <= limits.gpu_margin_warn_c:
            bad, over = fail if left <= 0 else warn, f"over {limits.gpu_margin_warn_c:g}"
            return bad(f"{left:.0f} °C left to the slowdown", f"{left:.0f}", over, fix="cooling")
        if median is None:
            return first_unknown(left)
        if not isinstance(now, Unknown) and now > median + limits.gpu_hotter_warn_c:
            text = f"{now:.0f} °C, the fleet's median is {median:.0f} °C"
            fix = "cooling; is somebody computing on it?"
            return warn(text, f"{now:.0f}", f"{median:.0f}", source="majority", fix=fix)
        return first_unknown(left, now)

    return each_node(fleet, "gpus", lambda _node, gpus: per_gpu(gpus, judge, "cool enough"))
