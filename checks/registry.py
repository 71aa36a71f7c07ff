"""The table of checks, which `@check` fills, and what it knows of each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from checks.finding import Found

Scope = Literal["node", "launch", "fleet", "active"]
"""When a check runs. node: for each node. launch: for each node, only with `fleet.launch`.

fleet: once. active: once, only with `fleet.active`.
"""
Rule = Callable[..., Found]
RuleT = TypeVar("RuleT", bound=Rule)


@dataclass(frozen=True, slots=True)
class Check:
    """A registered check; its id is stable, users silence it by id."""

    id: str
    scope: Scope
    function: Rule
    arguments: tuple[str, ...]
    advisory: bool  # to know it is good, not to know it stops no launch
    summary: str
    why: str = ""
    bad: str = ""  # when it warns and when it fails
    how: str = ""  # what is read on the node
    fix: str = ""  # of its findings that name no other


registry: dict[str, Check] = {}


def check(
    id: str, scope: Scope = "node", *, advisory: bool = False, **texts: str
) -> Callable[[RuleT], RuleT]:
    """Register a function as the check `id` (`subject.name`).

    Its arguments are, by name: `node`, `fleet`, `limits` (the profile), `launch`, `active`,
    `expected` (the value in the profile, or None), and any field of `NodeFacts`: the check is
    UNKNOWN or SKIP on a node where that is Unknown. Without `texts`, the last fields of `Check`,
    its docstring has them: a summary and lines `Why:`, `Bad:`, `How:`, `Fix:`.
    """

    def register(function: RuleT) -> RuleT:
        if id in registry and registry[id].function.__module__ != function.__module__:
            raise ValueError(f"two checks are called {id}")
        code = function.__code__
        arguments = code.co_varnames[: code.co_argcount]
        about = texts or _read_texts(inspect.cleandoc(function.__doc__ or ""))
        registry[id] = Check(id, scope, function, arguments, advisory, **about)
        return function

    return register


def _read_texts(doc: str) -> dict[str, str]:
    summary, *parts = re.split(r"\s*^(Why|Bad|How|Fix): ", doc, flags=re.MULTILINE)
    lines = zip(parts[::2], parts[1::2], strict=True)
    return {"summary": summary} | {key.lower(): re.sub(r"\s*\n\s*", " ", t) for key, t in lines}
