"""The documents: the site builds without a warning, and links of the documents beside the code lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BESIDE_CODE = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md")
EXAMPLES = ("mine.py", "my_stage.py", "train.py")  # of users, in commands
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


@pytest.mark.parametrize(
    "path",
    [*(ROOT / name for name in BESIDE_CODE[:4]), *sorted((ROOT / "docs").glob("[!d]*/*.md"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_files_that_documents_name_exist(path: Path) -> None:
    """A document may leave out the first folders of a path. Decisions may name files of their time."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    ends = {
        "/".join(parts[start:])
        for one in listed
        for parts in [one.split("/")]
        for start in range(len(parts))
    }
    named = re.findall(r"`((?:[a-z_\d]+/)*[a-z_\d]+\.py)[ `]", path.read_text(encoding="utf-8"))
    assert [one for one in named if one not in ends and one not in EXAMPLES] == []
