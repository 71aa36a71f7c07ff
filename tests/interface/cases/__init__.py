"""All cases: each is a short session whose lines and answers are recorded under its name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.interface.shell import Shell, shell
from tests.interface.transcript import transcript

Session = Callable[[Shell], None]


@dataclass(frozen=True)
class Case:
    """A session that is recorded in golden/NAME.txt."""

    name: str
    session: Session

    @property
    def about(self) -> str:
        return " ".join((self.session.__doc__ or "").split())

    def play(self) -> str:
        """The recording as it would be written now."""
        with shell() as one:
            self.session(one)
            return transcript(self.about, one.done, Path.cwd())


_cases: dict[str, Case] = {}


def case(name: str) -> Callable[[Session], Session]:
    """Make a function of a shell the case `name`; its docstring heads the recording."""

    def keep(session: Session) -> Session:
        assert name not in _cases, name
        assert session.__doc__, name
        _cases[name] = Case(name, session)
        return session

    return keep


def all_cases() -> dict[str, Case]:
    for module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")
    return dict(sorted(_cases.items()))
