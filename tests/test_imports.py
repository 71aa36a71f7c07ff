"""Every module imports, on every Python that is supported."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("checks", "clusterctl", "dashboards", "trainer")


def modules(package: str) -> list[str]:
    paths = sorted((ROOT / package).rglob("*.py"))
    names = (path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in paths)
    # torch_tests/rank.py is run as a program on the nodes; configs are read, not imported; Triton is not
    # in a CPU build of torch.
    apart = ("clusterctl.payload.torch_tests.rank", "trainer.configs.")
    if importlib.util.find_spec("triton") is None:
        return [name for name in _importable(names, apart) if not name.endswith("_kernels")]
    return _importable(names, apart)


def _importable(names: Iterable[str], apart: tuple[str, ...]) -> list[str]:
    return [name.removesuffix(".__init__") for name in names if not name.startswith(apart)]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_imports(package: str) -> None:
    names = modules(package)
    assert len(names) > 20
    for name in names:
        importlib.import_module(name)


def test_configs_parse() -> None:
    paths = list((ROOT / "trainer/configs").glob("*.py"))
    assert len(paths) > 8
    for path in paths:
        ast.parse(path.read_text(encoding="utf-8"), str(path))
