"""Could not find out is never good: every section of a census lacking, late, failed, empty, cut, garbage.

Which checks need a section is not written down anywhere: a check needs a fact when its own bad case
(cases.py) makes it bad by that fact alone, and a section when damage to it changes such a fact.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from checks.facts import Fleet, NodeFacts, Unknown
from checks.finding import Verdict
from checks.runner import all_checks, run_checks
from tests.checks import envelopes, healthy
from tests.checks.cases import CASES, GOOD, Case

CONTENT = (Verdict.PASS, Verdict.SKIP)
Section = dict[str, Any]


def cut(text: str, share: float = 0.5) -> str:
    """The first lines of a text; of one line, its beginning."""
    lines = text.splitlines(keepends=True)
    return "".join(lines[: int(len(lines) * share)]) if len(lines) > 1 else text[: int(len(text) * share)]  # fmt: skip


DAMAGE: dict[str, Callable[[str], Section | None]] = {
    "not sent": lambda text: None,
    "tool missing": lambda text: envelopes.raw("", None, "missing", "not found: tool"),
    "timeout": lambda text: envelopes.raw("", None, "timeout", "no end in 10 s, killed"),
    "timeout, half said": lambda text: envelopes.raw(cut(text), None, "timeout", "no end in 10 s, killed"),
    "error": lambda text: envelopes.raw("", None, "error", "PermissionError: [Errno 13] Permission denied"),
    "rc 127": lambda text: envelopes.raw("", 127, err="sh: tool: not found"),
    "killed, half said": lambda text: envelopes.raw(cut(text), -9),
    "killed, all said": lambda text: envelopes.raw(text, -11),
    "empty": lambda text: envelopes.raw(""),
    "blank": lambda text: envelopes.raw("\n"),
    "cut at its limit": lambda text: {**envelopes.raw(cut(text)), "truncated": True},
    "cut at the last line": lambda text: {**envelopes.raw(cut(text, 0.99)), "truncated": True},
    "garbage": lambda text: envelopes.raw("\x00\x7fELF\ufffd{[\n\t;;\n"),
    "other words": lambda text: envelopes.raw("Segmentation fault (core dumped)\n"),
    "no JSON": lambda text: envelopes.raw("[N/A]\n"),
    "wrong JSON": lambda text: envelopes.raw('{"path": [], "gpus": {}, "packages": 3}\n'),
}  # fmt: skip

# Said about what a section names, when it names something; here the GPUs have no process.
NO_VERDICT = {"gpu_owners"}
# A name that was asked of no node is in no question.
ENOUGH = {("name:n1", "net.names", "not sent")}
# The head's own: a record that is not there makes a check less sharp, and docs/reference/checks.md says so.
OF_THE_HEAD = (".previous", ".token_s")
QUICK = ("timeout, half said", "rc 127", "empty", "cut at its limit", "garbage")


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Paths of the values in which two facts differ; places in lists do not count."""
    if one == other:
        return
    same_kind = type(one) is type(other)
    if same_kind and dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            inner = getattr(one, field.name), getattr(other, field.name)
            yield from differences(*inner, f"{path}.{field.name}")
    elif same_kind and isinstance(one, tuple) and len(one) != len(other):
        yield f"{path}.#"
    elif same_kind and isinstance(one, tuple):
        for pair in zip(one, other, strict=True):
            yield from differences(*pair, path)
    elif isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        for key in one:
            yield from differences(one[key], other[key], f"{path}.{key}")
    else:
        yield path


def is_within(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def hurts(changed: str, need: str) -> bool:
    """Whether a change touches what a check needs. A list of another length touches all of its items."""
    return is_within(changed.removesuffix(".#"), need)


def with_only(good: Any, bad: Any, wanted: str, path: str = "") -> Any:
    """`good` with the one value at `wanted` as it is in `bad`."""
    if good == bad or not is_within(path, wanted):
        return good
    if wanted == f"{path}.#":
        return bad
    if path == wanted:
        same = isinstance(good, tuple) and isinstance(bad, tuple) and len(good) == len(bad)
        return tuple(with_only(a, b, wanted, path) for a, b in zip(good, bad, strict=True)) if same and any(dataclasses.is_dataclass(x) for x in good) else bad  # fmt: skip
    if dataclasses.is_dataclass(good) and type(good) is type(bad):
        changed = {
            field.name: with_only(getattr(good, field.name), getattr(bad, field.name), wanted, f"{path}.{field.name}")
            for field in dataclasses.fields(good)
        }  # fmt: skip
        return dataclasses.replace(good, **changed)  # type: ignore[type-var]
    if isinstance(good, tuple):
        return tuple(with_only(a, b, wanted, path) for a, b in zip(good, bad, strict=True))
    return {key: with_only(good[key], bad[key], wanted, f"{path}.{key}") for key in good}


def with_unknown(value: Any, wanted: str, why: Unknown, path: str = "") -> Any:
    """The facts with `why` in the place of the value at a path, where that may be Unknown."""
    if not dataclasses.is_dataclass(value):
        if isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
            return (with_unknown(value[0], wanted, why, path), *value[1:])
        return value
    for field in dataclasses.fields(value):
        here = f"{path}.{field.name}"
        if is_within(here, wanted):
            inner = getattr(value, field.name)
            may_be_unknown = here == wanted and "Maybe" in str(field.type)
            new = why if may_be_unknown else with_unknown(inner, wanted, why, here)
            return dataclasses.replace(value, **{field.name: new})  # type: ignore[type-var]
    return value


def verdicts(fleet: Fleet, id: str, node: str) -> set[Verdict]:
    return {one.verdict for one in run_checks(fleet, only=[id]).findings if node in one.nodes}


def replaced(fleet: Fleet, node: NodeFacts) -> Fleet:
    nodes = tuple(node if one.name == node.name else one for one in fleet.nodes)
    return dataclasses.replace(fleet, nodes=nodes)


def by_name(fleet: Fleet, name: str) -> NodeFacts:
    return next(one for one in fleet.nodes if one.name == name)


@functools.cache
def needed(id: str) -> frozenset[str]:
    """Paths of the facts of a node that make a check bad: each alone, else together."""
    return frozenset(path for case in CASES[id] for path in _needed_in(id, case))


def _needed_in(id: str, case: Case) -> set[str]:
    plain = dataclasses.replace(GOOD.get(id, healthy.fleet()), launch=case.fleet.launch)
    good, bad = by_name(plain, case.node), by_name(case.fleet, case.node)
    paths = set(differences(good, bad))
    alone = {
        path for path in paths
        if verdicts(replaced(plain, with_only(good, bad, path)), id, case.node) - set(CONTENT)
    }  # fmt: skip
    return alone or paths


@pytest.mark.long
def test_what_a_check_needs_is_derived_from_its_bad_cases() -> None:
    assert needed("gpu.ecc_mode") == {".gpus.gpus.health.ecc"}
    assert needed("time.skew") == {".clock.exchange.offset_s", ".clock.exchange.error_s"}
    assert needed("host.swap") == {".memory.swap_total_bytes"}
    by_the_launch_alone = {"launch.port_range", "launch.ib_present"}
    without = {id for id in all_checks() if not needed(id) and not id.startswith("active.")}
    assert without <= by_the_launch_alone


@functools.cache
def base(name: str, by_nvml: bool) -> NodeFacts:
    return envelopes.facts(name, envelopes.sections(by_nvml))


@functools.cache
def good_ids(name: str, by_nvml: bool) -> frozenset[str]:
    """Checks that call the undamaged node good."""
    findings = run_checks(envelopes.fleet(*(base(one, by_nvml) for one in healthy.NAMES))).findings
    return frozenset(
        one.id for one in findings if name in one.nodes and one.verdict is Verdict.PASS
    )


def test_undamaged_envelopes_are_good() -> None:
    for by_nvml in (True, False):
        # Of a fleet with RoCE, and of the head's ledger.
        passing = good_ids("n1", by_nvml) | {"launch.roce_gid", "host.history"}
        assert passing == {id for id in all_checks() if not id.startswith("active.")}


def lacks(section: str, everywhere: bool, damages: Iterable[str]) -> Iterator[str]:
    """What calls a node good although what it needs was not to be had."""
    by_nvml = section in envelopes.sections(True)
    good = envelopes.sections(by_nvml)
    name = (
        "n1" if section.startswith(("port:", "wandb")) else "n3"
    )  # the first node alone has these
    for damage in damages:
        broken = DAMAGE[damage](good[section]["out"])
        sent = {key: value for key, value in good.items() if key != section}
        sent |= {} if broken is None else {section: broken}
        node = envelopes.facts(name, sent)
        changed = list(differences(base(name, by_nvml), node))
        if not changed and section not in NO_VERDICT:
            yield f"{damage}: the facts are as if nothing were wrong"
        hurt = {id for id in good_ids(name, by_nvml) if any(hurts(one, need) for need in needed(id) for one in changed)}  # fmt: skip
        if not hurt:
            continue
        nodes = [
            node if other == name else envelopes.facts(other, sent) if everywhere else base(other, by_nvml)
            for other in healthy.NAMES
        ]  # fmt: skip
        findings = run_checks(envelopes.fleet(*nodes), only=hurt).findings
        about = [one for one in findings if name in one.nodes]
        # An interpreter that does not run fails there, and the rest about it is left out.
        failed = any(one.id == "software.interpreter_exists" and one.verdict is Verdict.FAIL for one in about)  # fmt: skip
        absent = damage in ("not sent", "tool missing") or failed
        for id in sorted(hurt):
            mine = [one for one in about if one.id == id]
            good_words = {Verdict.PASS} if absent else set(CONTENT)
            if {one.verdict for one in mine} <= good_words and (section, id, damage) not in ENOUGH:
                yield f"{damage}: {id}: {[(one.verdict.value, one.evidence) for one in mine]}"
        for one in findings:
            if "Unknown(" in one.evidence or "fault in this check" in one.evidence:
                yield f"{damage}: {one.id}: {one.evidence}"


SECTIONS = sorted({*envelopes.sections(True), *envelopes.sections(False)})


@pytest.mark.parametrize("section", SECTIONS)
def test_what_could_not_be_found_out_is_never_good(section: str) -> None:
    found = [*lacks(section, False, QUICK), *lacks(section, True, QUICK[-1:])]
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("everywhere", [False, True], ids=["one node", "all nodes"])
@pytest.mark.parametrize("section", SECTIONS)
def test_no_damage_to_a_section_looks_good(section: str, everywhere: bool) -> None:
    found = list(lacks(section, everywhere, DAMAGE))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("id", sorted(id for id in all_checks() if not id.startswith("active.")))
def test_a_fact_that_could_not_be_had_is_never_good(id: str) -> None:
    """Each fact that a check needs, Unknown in the place of its value, on one node."""
    for case in CASES[id]:
        plain = dataclasses.replace(GOOD.get(id, healthy.fleet()), launch=case.fleet.launch)
        good = by_name(plain, case.node)
        if verdicts(plain, id, case.node) != {Verdict.PASS}:
            continue
        for path in _needed_in(id, case):
            if path.startswith(OF_THE_HEAD):
                continue
            for reason in (Unknown("no end in 10 s"), Unknown("ERR!")):
                node = with_unknown(good, path, reason)
                if node == good:
                    continue  # not a value that may be Unknown
                found = verdicts(replaced(plain, node), id, case.node)
                assert found != {Verdict.PASS}, f"{case.name}: {path} is {reason!r}"
