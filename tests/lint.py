"""What ruff, mypy and import-linter do not check: import cycles of modules and of folders, long lines,
exceptions from formatting, wording.

python -m tests.lint           # part of make lint; one line a finding, exit code 1 if there is any
"""

from __future__ import annotations

import ast
import collections
import itertools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("checks", "clusterctl", "dashboards", "trainer")
WIDTH = 100
MOST_SKIPS = 40  # statements kept from the formatter, each a table
MOST_FILES = 20  # Python files side by side
# Here every signal handler puts something into the queue.
HANDLERS_PUT = ("clusterctl/payload/agent.py",)
# Files that may name Python in a command; the last two make what a node's agent starts (in "/", with
# PYTHONSAFEPATH), the starter's own start themselves again.
OWN_STARTS = (
    "trainer/runlog/own_modules.py",
    "trainer/starter/ranks.py",
    "trainer/starter/serve.py",
    "trainer/starter/visible.py",
    "clusterctl/launch/start.py",
    "clusterctl/payload/active_shared_folder.py",
)
# What a lock guarantees is written once for the head and the trainer, and once for nodes.
LOCKS = ("trainer/runlog/locks.py", "clusterctl/payload/files/locks.py")
# Sizes, durations and counts as text for people; what is sent to nodes can import none of ours.
UNITS = ("checks/units.py", "trainer/runlog/units.py", "clusterctl/payload/")
_UNIT_BEHIND = re.compile(r" ?(?:[KMGT]i?B|kB)\b(?![-'])")
_TIME_BEHIND = re.compile(r" (?:ms|s|min|minutes|h|hours|d)\b")
_SCALED = re.compile(
    r"/ (?:1000000(?:000)?\.0|10 \*\* [69]|2 \*\* [1-4]0|\(1 << [1-4]0\)|1024)(?!\d)|>> [1-4]0\b"
)
_PLURAL = re.compile(r"'e?s' if .* (?:!=|>) 1|if .* == 1 else 'e?s'")
# Secrets in nested values; the second also knows the names that they stand under.
MASKS = ("clusterctl/payload/secrets/mask.py", "clusterctl/why/masked.py")
# Lines of a program that the same module has started.
LINES_OF_OURS = (
    "clusterctl/payload/",
    "clusterctl/manifests/verbs.py",
    "clusterctl/transport/loopback/nodes.py",
)
# Calls that have one place: the name or the call, packages, where (or below), what to use elsewhere.
ONE_PLACE: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        "get_type_hints",
        ("clusterctl/", "dashboards/"),
        ("clusterctl/dataclass_json.py", "dashboards/recording/validation.py"),
        "decode of clusterctl/dataclass_json.py",
    ),
    (
        "crc32",
        ("clusterctl/",),
        ("clusterctl/payload/files/private.py", "clusterctl/serve/carry.py"),
        "name_of_run of clusterctl/payload/files/private.py",
    ),
    (
        "json.loads(line)",
        ("clusterctl/", "dashboards/"),
        LINES_OF_OURS,
        "object_of or parse_object of trainer/runlog/json_file.py",
    ),
    (
        "wrap",
        ("clusterctl/", "dashboards/"),
        ("clusterctl/report_lines.py", "clusterctl/why/show.py"),
        "wrapped or labelled of clusterctl/report_lines.py",
    ),
)
# Files that appear whole are written in the first two; a part that came by sftp and a checkpoint's
# folder with its pointer get their names in the others.
WRITERS = (
    "trainer/runlog/atomic_file.py",
    "clusterctl/payload/files/private.py",
    "clusterctl/payload/push.py",
    "trainer/checkpoint/files.py",
)
TEMPORARY = re.compile(r"(^|[._])(aside|fresh|new|part|partial|pointer|temp|tmp|whole)$")
# How a checkpoint is named; nodes have no trainer.
CHECKPOINT_NAMES = ("trainer/runlog/checkpoint_name.py", "clusterctl/payload/")
# Wordings that were replaced, in strings that users read. The second is what to write instead.
WORDS = (
    (
        r"(?<!there )\bis no (whole number|number|time|duration|file|folder|key|name)\b",
        "is not a valid …",
    ),
    (r"\bis meant\?", "did you mean …?"),
    (r"\bstands already in line\b", "already defined on line N"),
    (r"\bis there already\b", "already exists"),
    (r"\bnobody (tells|knows)\b", "unknown, unavailable"),
    (r"\banswers not\b", "does not answer"),
    (r"\bgoes on with\b", "continues with"),
    (r"\bthat is there\b", "existing"),
    (r"\b1 of 1 node\b", "the node's name"),
    (r"\bare wrong usage\b", "are rejected"),
    (r"\b1 (nodes|ranks|rows|files|clips|lines|jobs)\b", "singular"),
    (r"\bgoes on (with|without|where|in)\b", "continues …"),
    (r"\banew\b", "again"),
    (r"\bfor ever\b", "forever"),
    (r"\b[Ww]hoever\b", "the process (user, node) that …"),
    (r"\bnobody is left\b", "no node is left"),
    (r"\bare there already\b", "already exist"),
    (r"\b[Ll]ook again and again\b", "repeat"),
    (r"\bcan(not| be)? told\b|\bis told\b", "unknown, reported"),
    (r"\bare others\b", "differ"),
    (r"\bstands? in line\b", "is in line"),
    (r"\bif it is there\b", "if it exists"),
    (r"\bwhile we (look|measure)(ed|d)?\b", "during the measurement"),
    (r"\bin vain\b", "timed out"),
    (r"\bnothing (was )?heard\b", "no message"),
    (r"\b(too long|cannot) to tell\b", "too long to measure"),
)
ANY_WORDS = re.compile("|".join(f"(?:{pattern})" for pattern, _ in WORDS))

Nodes = list[ast.AST]  # all of a file, walked once


def sources() -> list[Path]:
    """Python files of the four packages, as git sees them."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *PACKAGES],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    paths = [ROOT / name for name in listed.splitlines() if name.endswith(".py")]
    return [path for path in paths if path.is_file()]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(nodes: Nodes, names: set[str]) -> set[str]:
    """Our modules that a module imports, in functions and for type checkers too."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in names else node.module)
    return found & names


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan, SIAM J. Comput. 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def between_folders(graph: dict[str, set[str]], depth: int) -> dict[str, set[str]]:
    """Imports between folders; a module that stands beside folders counts as one."""

    def folder(module: str) -> str:
        return ".".join(module.split(".")[:depth])

    folders: dict[str, set[str]] = {folder(module): set() for module in graph}
    for module, others in graph.items():
        folders[folder(module)].update(map(folder, others))
    return {name: others - {name, *PACKAGES} for name, others in folders.items()}


def skipped_lines(text: str, nodes: Nodes) -> set[int]:
    """Lines of statements that carry `# fmt: skip`."""
    lines = text.splitlines()
    ends = {number for number, line in enumerate(lines, 1) if line.endswith("# fmt: skip")}
    return (
        ends
        and {
            number
            for node in nodes
            if isinstance(node, ast.stmt) and node.end_lineno in ends and not hasattr(node, "body")
            for number in range(node.lineno, node.end_lineno + 1)
        }
        | ends
    )


def long_lines(path: Path, text: str, nodes: Nodes) -> Iterator[str]:
    table = skipped_lines(text, nodes)
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > WIDTH and number not in table and "://" not in line:
            yield f"{path.relative_to(ROOT)}:{number}: {len(line)} columns, at most {WIDTH}"


def user_strings(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """(line, text) of string literals, parts of f-strings and docstrings."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def wordings(path: Path, nodes: Nodes) -> Iterator[str]:
    for line, text in user_strings(nodes):
        for pattern, better in WORDS if ANY_WORDS.search(text) else ():
            match = re.search(pattern, text)
            if match:
                yield f"{path.relative_to(ROOT)}:{line}: {match[0]!r}: write {better!r}"


def unsafe_waits(every: dict[Path, Nodes]) -> Iterator[str]:
    """`get` with a timeout of something that is a SimpleQueue somewhere. Before Python 3.13 it waits
    forever when a signal handler ends after the time is up (a negative rest is no limit)."""
    simple: set[tuple[Path | None, str]] = set()  # attributes in all files, names in their own
    for path, nodes in every.items():
        named = (getattr(node, "attr", getattr(node, "id", "")) for node in nodes)
        if "SimpleQueue" not in named:
            continue
        for node in nodes:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and "SimpleQueue" in ast.unparse(node):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for one in (part for target in targets for part in ast.walk(target)):
                    if isinstance(one, ast.Attribute):
                        simple.add((None, one.attr))
                    elif isinstance(one, ast.Name):
                        simple.add((path, one.id))
    for path, nodes in every.items():
        if path.relative_to(ROOT).as_posix() in HANDLERS_PUT:
            continue
        for node in nodes:
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "get"
                and any(word.arg == "timeout" for word in node.keywords)
                and (
                    (path, ast.unparse(node.func.value)) in simple
                    or (None, ast.unparse(node.func.value).rpartition(".")[2]) in simple
                )
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: SimpleQueue.get(timeout=…): use queue.Queue"


def other_starts(path: Path, nodes: Nodes) -> Iterator[str]:
    """Python processes that import from the current folder: only OWN_STARTS may start any."""
    name = path.relative_to(ROOT).as_posix()
    if name in OWN_STARTS:
        return
    for node in nodes:
        bad = ""
        if isinstance(node, (ast.List, ast.Tuple)):
            words = [ast.unparse(part) for part in node.elts]
            if words[:1] == ["sys.executable"] and "'-I'" not in words:
                bad = "sys.executable"
            elif any(
                one == "'-m'" and two[1:].startswith(PACKAGES)
                for one, two in itertools.pairwise(words)
            ):
                bad = "-m"
        elif isinstance(node, ast.JoinedStr) and re.search(
            r"sys\.executable.* -[mc]\b", ast.unparse(node)
        ):
            bad = "sys.executable"
        if bad:
            yield f"{name}:{node.lineno}: {bad} in a command: use trainer/runlog/own_modules.py"
        if isinstance(node, ast.Call) and name.startswith("clusterctl/payload/"):
            is_start = ast.unparse(node.func) in ("subprocess.Popen", "subprocess.run")
            if is_start and not any(word.arg in ("cwd", None) for word in node.keywords):
                yield f"{name}:{node.lineno}: a payload's process without cwd starts where the user is"


def other_locks(path: Path, nodes: Nodes) -> Iterator[str]:
    """Calls of flock(2) and lockf outside LOCKS."""
    name = path.relative_to(ROOT).as_posix()
    for node in nodes if name not in LOCKS else ():
        if isinstance(node, ast.Attribute) and node.attr in ("flock", "lockf"):
            yield f"{name}:{node.lineno}: {node.attr}: use {' or '.join(LOCKS)}"


def own_units(path: Path, nodes: Nodes) -> Iterator[str]:
    """Sizes, durations and plurals that an f-string makes itself, outside UNITS."""
    name = path.relative_to(ROOT).as_posix()
    for node in nodes if not name.startswith(UNITS) else ():
        if not isinstance(node, ast.JoinedStr):
            continue
        for part, behind in itertools.zip_longest(node.values, node.values[1:]):
            if not isinstance(part, ast.FormattedValue):
                continue
            text = behind.value if isinstance(behind, ast.Constant) else ""
            value, form = ast.unparse(part.value), ast.unparse(part.format_spec or node)
            is_time = part.format_spec and form[-2] in "fg" and _TIME_BEHIND.match(text)
            if _UNIT_BEHIND.match(text) or is_time:
                yield f"{name}:{part.lineno}: {value}{text[:8]!r}: use {UNITS[0]} or {UNITS[1]}"
            elif (part.format_spec and _SCALED.search(value)) or _PLURAL.search(value):
                yield f"{name}:{part.lineno}: {value}: use {UNITS[0]} or {UNITS[1]}"


def second_places(path: Path, nodes: Nodes) -> Iterator[str]:
    """Calls of what ONE_PLACE names, in another file."""
    file = path.relative_to(ROOT).as_posix()
    rules = [one for one in ONE_PLACE if file.startswith(one[1]) and not file.startswith(one[2])]
    for node in nodes if rules else ():
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            for call, _, _, better in rules:
                if name == call or ast.unparse(node) == call:
                    yield f"{file}:{node.lineno}: {call}: use {better}"


def other_masks(path: Path, nodes: Nodes) -> Iterator[str]:
    """Functions outside MASKS that hide secrets in what is nested, by calling themselves."""
    name = path.relative_to(ROOT).as_posix()
    for node in nodes if name not in MASKS else ():
        if isinstance(node, ast.FunctionDef):
            inner = (one.func for one in ast.walk(node) if isinstance(one, ast.Call))
            called = {one.id for one in inner if isinstance(one, ast.Name)}
            if node.name in called and called & {"hide", "redact"}:
                yield f"{name}:{node.lineno}: {node.name}: use hide_in of {MASKS[0]}"


def other_writers(path: Path, nodes: Nodes) -> Iterator[str]:
    """Temporary files and folders that get their final name outside WRITERS."""
    name = path.relative_to(ROOT).as_posix()
    for node in nodes if name not in WRITERS else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            verb, of = node.func.attr, ast.unparse(node.func.value)
            is_path = len(node.args) == 1 and not node.keywords and TEMPORARY.search(of)
            if (verb == "replace" and (of == "os" or is_path)) or (verb == "rename" and is_path):
                yield f"{name}:{node.lineno}: {of}.{verb}: use {WRITERS[0]} or {WRITERS[1]}"


def other_names(path: Path, nodes: Nodes) -> Iterator[str]:
    """Patterns and f-strings of checkpoints' names outside CHECKPOINT_NAMES."""
    name = path.relative_to(ROOT).as_posix()
    for node in nodes if not name.startswith(CHECKPOINT_NAMES) else ():
        text = node.value if isinstance(node, ast.Constant) else None
        text = ast.unparse(node) if isinstance(node, ast.JoinedStr) else text
        # {G} is what documentation says.
        if isinstance(text, str) and re.search(r"-global_step(?!\{G\})[\\{*(\[]", text):
            yield f"{name}:{node.lineno}: a checkpoint's name: use {CHECKPOINT_NAMES[0]}"


def findings(paths: Iterable[Path]) -> Iterator[str]:
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    every = {path: list(ast.walk(ast.parse(text))) for path, text in texts.items()}
    names = {name_of(path) for path in texts}
    graph = {name_of(path): imported(nodes, names) for path, nodes in every.items()}
    graphs = (graph, between_folders(graph, 2), between_folders(graph, 3))
    found = dict.fromkeys(", ".join(cycle) for imports in graphs for cycle in cycles(imports))
    yield from (f"import cycle: {members}" for members in found)
    folders = collections.Counter(path.parent for path in texts)
    for folder, count in folders.items():
        if count > MOST_FILES:
            yield f"{folder.relative_to(ROOT)}: {count} Python files, at most {MOST_FILES}"
    skips = sum(text.count("# fmt: skip") for text in texts.values())
    if skips > MOST_SKIPS:
        yield f"{skips} times `# fmt: skip`, at most {MOST_SKIPS}"
    yield from unsafe_waits(every)
    for path, text in texts.items():
        yield from long_lines(path, text, every[path])
        yield from wordings(path, every[path])
        yield from other_starts(path, every[path])
        yield from own_units(path, every[path])
        yield from other_locks(path, every[path])
        yield from second_places(path, every[path])
        yield from other_masks(path, every[path])
        yield from other_writers(path, every[path])
        yield from other_names(path, every[path])


def main() -> int:
    found = list(findings(sources()))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
