"""Write the recordings of all commands anew, or of those that are named.

python -m tests.interface.record                 # all; git diff then shows what users will notice
python -m tests.interface.record gpus kill.good  # every case of a command, or one case
python -m tests.interface.record --check         # write nothing; exit code 1 where something differs

A case is a function in tests/interface/cases/; its name says which file of golden/ it is recorded in.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.interface.cases import Case, all_cases
from tests.interface.transcript import GOLDEN, difference, path_of


def chosen(names: Sequence[str]) -> list[Case]:
    """Cases by name or by the first words of one. Raises SystemExit for a name that fits none."""
    cases = all_cases()
    for name in names:
        if not any(_fits(name, known) for known in cases):
            raise SystemExit(f"error: no case is called {name}; ls {GOLDEN.name}/ shows all")
    return [
        case
        for known, case in cases.items()
        if not names or any(_fits(name, known) for name in names)
    ]


def _fits(name: str, known: str) -> bool:
    return known == name or known.startswith(f"{name}.")


def remove_strangers() -> list[str]:
    """Recordings without a case go."""
    cases = all_cases()
    gone = [path for path in GOLDEN.glob("*.txt") if path.stem not in cases]
    for path in gone:
        path.unlink()
    return [path.name for path in gone]


def main(words: Sequence[str]) -> int:
    if {"-h", "--help"} & set(words):
        print(__doc__, end="")
        return 0
    is_check = "--check" in words
    names = [word for word in words if word != "--check"]
    changed = 0
    for case in chosen(names):
        fresh = case.play()
        found = difference(case.name, fresh)
        changed += bool(found)
        if found and is_check:
            print(found)
        elif found:
            path_of(case.name).write_text(fresh, encoding="utf-8")
            print(f"recorded {path_of(case.name).name}")
    if not names and not is_check:
        for name in remove_strangers():
            print(f"removed {name}")
    print(f"{changed} of {len(chosen(names))} recordings {'differ' if is_check else 'changed'}")
    return 1 if is_check and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
