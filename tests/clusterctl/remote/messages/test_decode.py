"""Whatever a node says, it is a value of the verb's shape or one sentence, at a bounded cost."""

from __future__ import annotations

import base64
import json
import tracemalloc
from typing import Any

import pytest

from clusterctl.errors import TransportError
from clusterctl.remote.messages import shape
from clusterctl.remote.messages.shape import STRUCTURE_BYTES, decode
from clusterctl.remote.messages.verbs import SHELL_BYTES, VERBS, read_line

MIB = 1 << 20


def anything(value: Any) -> Any:
    return value


def refusal(line: bytes, inner: shape.Shape = anything) -> str:
    with pytest.raises(TransportError) as caught:
        decode(line, "the answer of kill", inner)
    assert caught.value.phase == "parse"
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 400
    return text


@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("line", [b"{}", b"[]", b"null", b"7", b'"x"', b"", b"\xff\xfe", b"[" * 100_000])  # fmt: skip
def test_what_no_payload_says_is_refused_for_every_verb(verb: str, line: bytes) -> None:
    with pytest.raises(TransportError) as caught:
        read_line(verb, line)
    assert caught.value.phase == "parse"


def test_the_sentence_says_where_and_what_and_nothing_a_terminal_obeys() -> None:
    rows = shape.record({"rows": shape.items(shape.record({"pid": shape.whole(1)}), 3)})
    line = json.dumps({"rows": [{"pid": 1}, {"pid": "\x1b]0;x\x07"}]}).encode()
    assert refusal(line, rows) == r"the answer of kill is not as it should be: rows[1].pid should be a whole number of at least 1, is the text '\\x1b]0;x\\x07'"  # fmt: skip
    assert "rows should be there" in refusal(b"{}", rows)
    assert r"rows[0].\x1b should be absent" in refusal(
        b'{"rows": [{"pid": 1, "\\u001b": 2}]}', rows
    )


def test_nesting_nan_and_numbers_without_end_are_refused() -> None:
    assert "nested too deeply" in refusal(b'{"a":' * 100_000)
    assert "no JSON" in refusal(b'{"a": NaN}')
    assert "no JSON" in refusal(b'{"a": Infinity}')
    refusal(b"9" * 5_000)
    assert "number" in refusal(b"1e999", shape.number())
    assert "number" in refusal(b"9" * 400, shape.number())
    assert "number" in refusal(b"true", shape.whole())


@pytest.mark.parametrize(
    "unit", [b"[],", b"{},", b'"ab",', b"1.5,", b'{"":[]},', b"[0,", b'"\\"",']
)
def test_a_line_of_many_values_is_refused_before_they_are_made(unit: bytes) -> None:
    line = b"[" + unit * (8 * MIB // len(unit)) + b"0]"
    tracemalloc.start()
    words = refusal(line, anything)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "too many values" in words
    assert peak < 48 * MIB


def test_a_long_text_is_no_reason_to_refuse() -> None:
    text = 'a, [b] {c} "d" \\' * (4 * MIB // 16)
    value = decode(json.dumps({"out": text}).encode(), "it", anything)
    assert value == {"out": text}
    assert len(text) > STRUCTURE_BYTES


def test_the_longest_line_of_the_widest_text_costs_no_more_than_64_mib() -> None:
    most = max(line_bytes for name, (_, line_bytes) in VERBS.items() if name != "shell")
    line = b'"' + b"a" * (most - 14) + b'\\ud83d\\ude00"'
    tracemalloc.start()
    decode(line, "it", shape.text(most, lines=True))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(line) == most
    assert peak + len(line) < 64 * MIB


@pytest.mark.long
def test_output_of_a_command_costs_no_more_than_64_mib() -> None:
    part = 16  # of the most: counting memory makes it slow
    sizes = (SHELL_BYTES // part, SHELL_BYTES // part // 4)
    out, err = (base64.b64encode(b"\xff" * size).decode() for size in sizes)
    section = {"state": "ended", "rc": 0, "seconds": 1.0, "out": out, "err": err}
    node = {
        "hostname": "n",
        "boot_id": None,
        "python": "3",
        "time_s": 1,
        "boottime_s": 1,
        "user": "u",
    }
    answer = {"schema": 1, "verb": "shell", "node": node, "sections": {"command": section}}
    line = json.dumps(answer).encode()
    tracemalloc.start()
    read_line("shell", line)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(line) <= VERBS["shell"][1] // part
    assert peak + len(line) < 64 * MIB // part


def test_texts_come_out_printable_and_log_text_as_it_came() -> None:
    said = json.dumps("a\x1b[31mb\x1b]52;c;x\x07\n\ud800").encode()
    assert decode(said, "it", shape.text()) == r"ab\x1b]52;c;x\x07\n\ud800"
    assert decode(said, "it", shape.text(lines=True)) == "ab\\x1b]52;c;x\\x07\n\\ud800"
    raw = decode(said, "it", shape.raw_text(100))
    assert raw == "a\x1b[31mb\x1b]52;c;x\x07\n\\ud800"
    raw.encode()


def test_two_keys_that_print_alike_are_not_two_names() -> None:
    names = shape.table(shape.text(), shape.whole(), 5)
    assert "differ in print" in refusal(b'{"a\\u001b": 1, "a\\\\x1b": 2}', names)


def test_bytes_of_a_command_are_bounded_and_any_byte_is_text() -> None:
    packed = shape.packed_text(3)
    assert packed("/wBh") == "\\xff\0a"
    for odd in ("/wBhYQ==", "/wB", "/wB!", "é", 3):
        with pytest.raises(shape.Misshapen):
            packed(odd)
