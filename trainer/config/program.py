"""Whether a Python file is a program, by its text alone: no program is run as a configuration."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

# What a configuration does not import: it holds numbers, strings, lists, tuples and dicts.
_FRAMEWORKS = frozenset(
    [
        "accelerate",
        "apex",
        "colossalai",
        "composer",
        "deepspeed",
        "diffusers",
        "horovod",
        "jax",
        "lightning",
        "megatron",
        "pytorch_lightning",
        "ray",
        "tensorflow",
        "torch",
        "torchvision",
        "transformers",
    ]
)
_CHANGES = frozenset(
    ["append", "clear", "extend", "insert", "pop", "remove", "setdefault", "sort", "update"]
)


def why_program(source: bytes, known: Collection[str] | None = None) -> tuple[int, str] | None:
    """(line, what a configuration does not do) for a program; None for a configuration, also for
    one with an error of syntax.

    `known` are the keys of a configuration, of which a file with code has to set one itself.
    """
    first = source[:200].partition(b"\n")[0]
    if first.startswith(b"#!") and b"python" not in first:
        return 1, "its first line names another interpreter than Python"
    if b"\0" in source:
        return 0, "it is no text"
    try:
        statements = list(_outside_functions(ast.parse(source).body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # reading it says where
    for one in statements:
        if isinstance(one, ast.If) and _asks_for_main(one.test):
            return one.lineno, 'it asks for __name__ == "__main__"'
        if isinstance(one, ast.While | ast.AsyncFor | ast.AsyncWith):
            return one.lineno, "it has a loop or a block that only programs have"
        called = one.value if isinstance(one, ast.Expr) else None
        if isinstance(called, ast.Call | ast.Await) and not _changes_value(called):
            return one.lineno, f"it calls {_shortened(called)}"
        for module in _imported(one):
            if module in _FRAMEWORKS:
                return one.lineno, f"it imports {module}"
    keys = {name for one in statements for name in _assigned(one)}
    if known is None or not keys.isdisjoint(known) or "_base_" in keys:
        return None
    if any(isinstance(one, _CODE) for one in statements):
        return 0, "it sets no key of a configuration"
    return None  # a wrong key: its place and the nearest one are told


_CODE = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For)


def _outside_functions(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the file is loaded, those of blocks too."""
    waiting = list(reversed(body))
    while waiting:
        one = waiting.pop()
        yield one
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        inner = [*getattr(one, "body", ()), *getattr(one, "orelse", ())]
        for handler in getattr(one, "handlers", ()):
            inner += handler.body
        waiting += reversed([*inner, *getattr(one, "finalbody", ())])


def _asks_for_main(test: ast.expr) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "__name__" for one in ast.walk(test))


def _changes_value(call: ast.Call | ast.Await) -> bool:
    """`bucket_config.update(…)`, and print, whose text goes to stderr."""
    func = call.func if isinstance(call, ast.Call) else None
    if isinstance(func, ast.Name):
        return func.id == "print"
    if not isinstance(func, ast.Attribute) or func.attr not in _CHANGES:
        return False
    root: ast.expr = func.value
    while isinstance(root, ast.Subscript | ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name)


def _shortened(call: ast.Call | ast.Await) -> str:
    words = ast.unparse(call.func if isinstance(call, ast.Call) else call)
    return (words if len(words) <= 40 else words[:37] + "...") + "()"


def _imported(one: ast.stmt) -> list[str]:
    names = [alias.name for alias in one.names] if isinstance(one, ast.Import) else []
    if isinstance(one, ast.ImportFrom) and one.module and not one.level:
        names = [one.module]
    return [name.partition(".")[0] for name in names]


def _assigned(one: ast.stmt) -> Iterator[str]:
    targets = one.targets if isinstance(one, ast.Assign) else []
    if isinstance(one, ast.AnnAssign | ast.AugAssign):
        targets = [one.target]
    for target in targets:
        for name in ast.walk(target):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                yield name.id
