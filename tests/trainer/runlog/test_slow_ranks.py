"""The event `slow-ranks` as readers see it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.runlog.slow_ranks import MOST, NAME, Spell, after, slow_ranks
from trainer.runlog.slow_reasons import Reason
from trainer.runlog.telemetry import Event

CLOCK = Reason("sm_mhz", "its GPU runs at 1410 MHz, the others at 1980", 1410.0, 1980.0)


def entry(rank: int | None = 5, since_step: int = 120, **changed: Any) -> dict[str, Any]:
    """A rank as the trainer writes it."""
    data = {
        "rank": rank,
        "share": 0.062,
        "seconds": 0.084,
        "phase": "backward",
        "also": ["forward"],
    }
    data |= {"since_step": since_step, "host": "n1", "reasons": [asdict(CLOCK)], "not_compared": []}
    return data | changed


def said(*entries: dict[str, Any], step: int = 200) -> Event:
    return Event(NAME, "", {"slow": list(entries)}, step)


def test_a_slow_rank_is_a_sentence_with_place_size_phases_and_reasons() -> None:
    (one,) = slow_ranks(said(entry()))
    assert one.sentence() == (
        "rank 5 on n1 is 6.2% slower than the others, 84 ms of a step, "
        "most of it in backward and forward: its GPU runs at 1410 MHz, the others at 1980"
    )
    assert one.sentence("ml-64-node-001").startswith("rank 5 on ml-64-node-001 is")


def test_much_slower_is_a_multiple() -> None:
    (one,) = slow_ranks(said(entry(share=11.5)))
    assert one.sentence().startswith("rank 5 on n1 is 12.5 times as slow as the others, 84 ms")


def test_an_unknown_reason_is_said_with_what_was_not_compared() -> None:
    (one,) = slow_ranks(said(entry(reasons=[], not_compared=["GPU", "CPU"])))
    assert one.why == (
        "reason unknown: nothing that was read differs from the others (not compared: GPU, CPU)"
    )


def test_a_common_cause_names_no_rank() -> None:
    (one,) = slow_ranks(said(entry(None, phase="data", also=[], reasons=[])))
    assert one.sentence() == (
        "all ranks are 6.2% slower than before, 84 ms of a step, most of it in data: "
        "the cause is common to them"
    )


def test_a_spell_lasts_until_another_event_or_a_start() -> None:
    spells: tuple[Spell, ...] = ()
    spells = after(spells, said(entry(5), entry(6), step=200))
    spells = after(spells, Event("checkpoint", step=210))
    spells = after(spells, said(entry(6, share=0.2), step=300))
    assert [(one.slow.rank, one.until_step) for one in spells] == [(5, 300), (6, None)]
    assert spells[1].slow.share == 0.2
    spells = after(spells, Event("start", step=310))
    assert [(one.slow.rank, one.until_step) for one in spells] == [(5, 300), (6, 310)]
    spells = after(spells, said(entry(6), step=500))
    assert len(spells) == 3
    for step in range(600, 600 + 2 * MOST):
        spells = after(spells, said(entry(step), step=step))
    assert len(spells) == MOST


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(entry())), inner),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=60)
@given(JUNK, st.sampled_from(sorted(entry())))
def test_what_is_not_as_it_should_be_is_left_out_or_printable(value: Any, name: str) -> None:
    for one in slow_ranks(Event(NAME, "", {"slow": [entry(**{name: value})]})):
        assert isinstance(one.sentence(), str)
    slow_ranks(Event(NAME, "", {"slow": value}))
