"""The documents: the site builds without a warning, and links of the documents beside the code lead somewhere."""

from __future__ import annotations

import ast
import functools
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BESIDE_CODE = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md")
PACKAGES = ("checks", "clusterctl", "dashboards", "trainer")
# Of users in examples, and of other projects.
OF_OTHERS = (
    *("mine.py", "my_stage.py", "read_video.py", "scripts/train.py", "train.py"),
    *("click.py", "torch/_ops.py", "vbench/__init__.py", "version.py", "trainer.NAME"),
)
FILES = (".com", ".csv", ".json", ".log", ".md", ".py", ".rec", ".toml")
OF_THEIR_TIME = ("0009-layout.md",)  # a table of names that were replaced
# The browser loads these by itself; a link that somebody clicks is not among them.
LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]*\ssrc=[\"']?(?:https?:)?//|<link[^>]*rel=[\"']?(?:stylesheet|preload)[^>]*//"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(folder),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.long
def test_site_has_every_document_and_picture(site: Path) -> None:
    for source in (ROOT / "docs").rglob("*.*"):
        inside = source.relative_to(ROOT / "docs")
        if inside.suffix != ".md":
            assert (site / inside).is_file()
        elif inside.stem in ("index", "README"):
            assert (site / inside.parent / "index.html").is_file()
        else:
            assert (site / inside.with_suffix("") / "index.html").is_file()


def test_pages_load_nothing_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert LOADED.search(page.read_text(encoding="utf-8")) is None, page
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert styles
    assert not [one for one in styles if re.search(r"@import|url\([\"']?(?:https?:)?//", one)]


def anchors(text: str) -> set[str]:
    """Anchors of the headings, as GitHub names them."""
    headings = re.findall(r"^#+ +(.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}


def dead_links(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        other = path.parent / name if name else path
        if not other.exists() or (anchor and anchor not in anchors(other.read_text("utf-8"))):
            found.append(target)
    return found


@pytest.mark.parametrize("name", BESIDE_CODE)
def test_links_lead_to_files_and_headings(name: str) -> None:
    assert dead_links(ROOT / name) == []


def test_dead_link_and_dead_anchor_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A heading, here\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#a-heading-here) [b](gone.md) [c](other.md#none)", encoding="utf-8"
    )
    assert dead_links(page) == ["gone.md", "other.md#none"]


@pytest.mark.parametrize("name", BESIDE_CODE)
def test_documents_that_are_named_in_text_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert [
        one for one in re.findall(r"\bdocs/[\w/-]+\.md", text) if not (ROOT / one).is_file()
    ] == []


def test_code_names_documents_that_exist() -> None:
    listed = subprocess.run(
        ["git", "grep", "-ohE", r"\bdocs/[a-z/-]+\.md", "--", "checks", "clusterctl", "dashboards", "trainer"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert listed
    assert [one for one in sorted(set(listed)) if not (ROOT / one).is_file()] == []


@functools.cache
def listed() -> tuple[str, ...]:
    """All files, as git sees them."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(found.stdout.splitlines())


@functools.cache
def ends(names: tuple[str, ...], mark: str) -> frozenset[str]:
    """The names, each also without its first parts."""
    every = [name.split(mark) for name in names]
    return frozenset(mark.join(parts[at:]) for parts in every for at in range(len(parts)))


@functools.cache
def modules() -> tuple[str, ...]:
    ours = [one for one in listed() if one.endswith(".py") and one.startswith((*PACKAGES, "tests"))]
    return tuple(one[:-3].replace("/", ".").removesuffix(".__init__") for one in ours)


@functools.cache
def folders() -> frozenset[str]:
    return frozenset(name.split(".")[-2] for name in modules() if "." in name)


def exists(name: str) -> bool:
    """Whether a dotted name is a module of ours, or something in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        begin = ".".join(parts[:count])
        if begin in ends(modules(), "."):
            if count == len(parts):
                return True
            homes = [one for one in modules() if f".{one}".endswith(f".{begin}")]
            files = [ROOT / one.replace(".", "/") for one in homes]
            files = [
                one / "__init__.py" if one.is_dir() else one.with_suffix(".py") for one in files
            ]
            return any(re.search(rf"\b{parts[count]}\b", one.read_text("utf-8")) for one in files)
    return False


def gone(text: str) -> list[str]:
    """Files and modules named in a text that do not exist; the first folders may be left out."""
    files = re.findall(r"(?<![\w./~])((?:[a-z_\d]+/)*[a-z_\d]+\.py)\b(?![\w/])", text)
    found = [one for one in files if one not in ends(listed(), "/") and one not in OF_OTHERS]
    for one in re.findall(r"(?<![\w./-])([a-z_]+(?:\.[A-Za-z_]\w*)+)(?![\w/]|\.\w)", text):
        first = one.split(".")[0]
        is_ours = first in PACKAGES or (first in folders() and one.count(".") > 1)
        if is_ours and not one.endswith(FILES) and one not in OF_OTHERS and not exists(one):
            found.append(one)
    return found


def comments_and_docstrings(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


@pytest.mark.parametrize(
    "path",
    [*(ROOT / name for name in BESIDE_CODE[:4]), *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_files_and_modules_that_documents_name_exist(path: Path) -> None:
    if path.name not in OF_THEIR_TIME:
        assert gone(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_files_and_modules_that_the_code_names_exist(package: str) -> None:
    paths = [
        ROOT / one for one in listed() if one.startswith(f"{package}/") and one.endswith(".py")
    ]
    every = {path: list(comments_and_docstrings(path)) for path in paths if path.is_file()}
    assert [(path.name, one) for path in every for text in every[path] for one in gone(text)] == []


def test_names_of_what_is_gone_are_found() -> None:
    text = "`stacks/model.py`, `model.py` and stacks/gone.py; trainer.loop.save, trainer.loop.gone_too,"
    text += " feeds.run_dir.steady_clock, feeds.base.steady_clock, clusterctl.toml, gpu.vbios_equal"
    assert gone(text) == ["stacks/gone.py", "trainer.loop.gone_too", "feeds.base.steady_clock"]
