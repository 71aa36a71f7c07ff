"""Files that preflight writes and reads: JUnit for CI, a profile of what a good cluster shows."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks.finding import Report, Verdict
from checks.profile import Profile, ProfileError, profile_from
from clusterctl.errors import UsageError

# Tags of a case, and attributes of a suite that count them.
TAGS = {Verdict.FAIL: "failure", Verdict.UNKNOWN: "error", Verdict.SKIP: "skipped"}
COUNTS = {Verdict.FAIL: "failures", Verdict.UNKNOWN: "errors", Verdict.SKIP: "skipped"}
PROFILE_HEAD = """\
# Written by clusterctl preflight --record; read with --profile. Thresholds go above
# the table, e.g. clock_skew_warn_s = 0.02, and verdicts in a table [severity].
[expected]
"""


def junit(report: Report) -> str:
    """A test suite for each node, a case for each check with a finding about it.

    FAIL is a failure, UNKNOWN an error, SKIP is skipped; a warning passes, and its output says so.
    """
    root = xml.Element("testsuites", name="clusterctl preflight", time=f"{report.seconds:.3f}")
    for node in report.nodes:
        found = [one for one in report.findings if node in one.nodes]
        count = Counter(COUNTS.get(one.verdict) for one in found)
        counts = {name: str(count[name]) for name in COUNTS.values()}
        about = {"name": node, "tests": str(len(found)), **counts}
        suite = xml.SubElement(root, "testsuite", about)
        for one in found:
            case = xml.SubElement(suite, "testcase", classname=node, name=one.id)
            evidence = _printable(one.evidence)
            text = evidence + _printable(f"\nfix: {one.fix}" if one.fix else "")
            if one.verdict in TAGS:
                tag = xml.SubElement(case, TAGS[one.verdict], message=evidence)
                tag.text = None if one.verdict is Verdict.SKIP else text
            elif one.verdict is Verdict.WARN:
                xml.SubElement(case, "system-out").text = f"WARN: {text}"
    text = xml.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _printable(text: str) -> str:
    """XML cannot hold control characters, and text of a node may."""
    return "".join(char if char >= " " or char in "\n\t" else "�" for char in text)


def write(path: Path, text: str) -> None:
    """Write a file of ours. Raises `UsageError`."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def profile_text(expected: Mapping[str, str]) -> str:
    """A profile as TOML: what every node showed when it was recorded."""
    # A JSON string is a TOML string.
    lines = [f"{json.dumps(id)} = {json.dumps(value)}\n" for id, value in expected.items()]
    return PROFILE_HEAD + "".join(lines)


def read_profile(path: Path | None, severity: Mapping[str, str]) -> Profile:
    """The profile of a file, with the verdicts of --severity on top. Raises `UsageError`."""
    data: dict[str, Any] = {}
    if path is not None:
        from clusterctl.defaults import parse_toml
        from trainer.runlog.run_files import read_chosen

        try:
            data = parse_toml(read_chosen(path).decode())
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"{path} cannot be read: {why}") from None
    table = data.get("severity", {})
    data["severity"] = {**(table if isinstance(table, dict) else {}), **severity}
    # "off" and "skip" silence; the others replace a bad verdict.
    off = [id for id, word in data["severity"].items() if str(word).lower() in ("off", "skip")]
    data["severity"] = {id: word for id, word in data["severity"].items() if id not in off}
    data["silence"] = [*data.get("silence", ()), *off]
    try:
        return profile_from(data)
    except (ProfileError, TypeError) as error:
        raise UsageError(f"{path or '--severity'}: {error}") from None
