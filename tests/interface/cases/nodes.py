"""The hostfile, and what all commands say about it."""

from __future__ import annotations

from pathlib import Path

from clusterctl.ledger.entries import CHECK, EXCLUDED, INCIDENT, Entry
from clusterctl.ledger.file import append
from tests.interface.cases import case
from tests.interface.machines import start
from tests.interface.shell import Shell


@case("nodes.good")
def good(shell: Shell) -> None:
    """A hostfile in each of the ways it can be listed."""
    shell.patches.setattr("clusterctl.transport.ssh_config.host.local_user", lambda: "ann")
    shell.write("nodes.txt", "a[1-3] rack=r1\nb host=10.0.0.9 port=2200 user=me slots=8\n")
    shell.run("clusterctl nodes")
    shell.run("clusterctl nodes nodes.txt --json")
    shell.run("clusterctl nodes --fold -w a[1-2],b")
    shell.run("clusterctl nodes -x a2 -v")
    shell.run("clusterctl nodes --expand 'n[001-003],m7'")


@case("nodes.bad")
def bad(shell: Shell) -> None:
    """Hostfiles and node sets that cannot be read."""
    shell.run("clusterctl nodes")
    shell.run("clusterctl nodes missing.txt")
    for name, text in (
        ("empty", "# nothing\n"),
        ("twice", "a[1-3]\na2\n"),
        ("unknown-key", "a1 prot=22\n"),
        ("port", "a1 port=many\n"),
        ("slots", "a1 slots=0\n"),
        ("range", "a[3-1]\n"),
        ("bracket", "a[1-\n"),
        ("label", "a1 rack\n"),
    ):
        shell.write(f"{name}.txt", text)
        shell.run(f"clusterctl nodes {name}.txt")
    shell.write("nodes.txt", "a[1-3]\n")
    shell.run("clusterctl nodes -w c")
    shell.run("clusterctl nodes -w 'a[1-'")
    shell.run("clusterctl nodes -x a[1-3]")
    shell.run("clusterctl nodes nodes.txt --hostfile other.txt")
    shell.run("clusterctl nodes --expand 'a[1-'")


@case("nodes.history")
def history(shell: Shell) -> None:
    """What happened to nodes: nothing, much, of some, entered by hand; lines that cannot be read."""
    shell.patches.setattr("clusterctl.exclude.change.author", lambda: "ann@head")
    shell.write("nodes.txt", "a[1-3]\nb\n")
    shell.run("clusterctl nodes --history")
    day, xid = 86400.0, "NVRM: Xid (PCI:0000:44:00): 79, pid=8, GPU has fallen off the bus."
    began_s = 1_795_269_600.0
    made = [
        Entry("a2", INCIDENT, xid, began_s, "launch", "xid-79", "003-x", "r1", 1, counts=True),
        Entry("a2", EXCLUDED, xid, began_s, "launch", run="003-x", until_s=began_s + day),
        Entry("a2", CHECK, "Xid 79", began_s + day, "preflight", "gpu.xid", state="failed", counts=True),
        Entry("c9", INCIDENT, "exit code -9", began_s, "launch", "signal-9", "004-x", "r2", 3, counts=True),
    ]  # fmt: skip
    append(Path("node-history.jsonl"), made)
    with Path("node-history.jsonl").open("a") as file:
        file.write('{"version": 9}\n{"to')
    shell.run("clusterctl nodes --history")
    shell.run("clusterctl nodes --history -w a2 -q")
    shell.run("clusterctl nodes --history --since 2026-11-22 --json")
    shell.run("clusterctl nodes -w a2 --note 'GPU 3 replaced, ticket 4711' --repaired")
    shell.run("clusterctl nodes -w a[1-2] --note 'watch the fan' --json")
    shell.run("clusterctl nodes --note 'which?'")
    shell.run("clusterctl nodes -w a1 --note ''")
    shell.run("clusterctl nodes -w a1 --repaired")
    shell.run("clusterctl nodes --since 3d")
    Path("node-history.jsonl").unlink()
    Path("node-history.jsonl").mkdir()
    shell.run("clusterctl nodes --history")
    shell.run("clusterctl nodes -w a1 --note x")
    shell.run("clusterctl exclude add a1 --reason x --for 1d")


@case("clusterctl.usage")
def usage(shell: Shell) -> None:
    """Wrong words in front of any work: unknown commands and options, values that are none."""
    shell.write("nodes.txt", "a1\n")
    shell.run("clusterctl gpsu")
    shell.run("clusterctl")
    shell.run("clusterctl nodes --jsno")
    shell.run("clusterctl nodes a b c")
    shell.run("clusterctl gpus --fanout 0")
    shell.run("clusterctl gpus --connect-timeout soon")
    shell.run("clusterctl gpus --connect-timeout nan")
    shell.run("clusterctl gpus --deadline 0")
    shell.run("clusterctl gpus --color blue")


@case("clusterctl.settings")
def settings(shell: Shell) -> None:
    """The settings file: read, refused."""
    shell.write("nodes.txt", "a[1-3]\n")
    for text in (
        'connect-timeout = 1.5\n[nodes]\nonly = "a1"\n',
        "[gpsu]\nonly = 'a1'\n",
        "conect-timeout = 3\n",
        "connect-timeout = 'soon'\n",
        "not toml",
    ):
        shell.write("clusterctl.toml", text)
        shell.run("clusterctl nodes -v")


@case("exclude.good")
def exclude(shell: Shell) -> None:
    """Nodes that no run may use: none, added, listed, removed."""
    shell.patches.setattr("clusterctl.transport.ssh_config.host.local_user", lambda: "ann")
    shell.patches.setattr("clusterctl.exclude.change.author", lambda: "ann@head")
    shell.write("nodes.txt", "a[1-3]\nb\n")
    shell.run("clusterctl exclude list")
    shell.run("clusterctl exclude add a2 --reason 'Xid 79' --for 2d")
    shell.run("clusterctl exclude add a3,b nodes.txt --reason 'fan' --json")
    shell.run("clusterctl exclude add a3 --reason 'fan, ticket 4711'")
    shell.run("clusterctl exclude list")
    shell.run("clusterctl exclude list nodes.txt --json")
    shell.run("clusterctl nodes")
    shell.run("clusterctl nodes --json")
    shell.run("clusterctl exclude remove a[2-3]")
    shell.run("clusterctl exclude remove b --json")
    over = 'reason = "x"\nsince = 2026-03-01T08:00:00Z\nuntil = 2026-03-02T08:00:00Z\n'
    shell.write("exclude.toml", f'[[exclude]]\nnode = "a9"\n{over}')
    shell.run("clusterctl exclude list")


@case("exclude.bad")
def bad_exclude(shell: Shell) -> None:
    """Words that are none, nodes that are not there, files that cannot be read or changed."""
    shell.run("clusterctl exclude list")
    shell.write("nodes.txt", "a[1-3]\n")
    shell.run("clusterctl exclude")
    shell.run("clusterctl exclude add")
    shell.run("clusterctl exclude add a1")
    shell.run("clusterctl exclude add a9 --reason x")
    shell.run("clusterctl exclude add a1 nodes.txt a2 --reason x")
    shell.run("clusterctl exclude add a1 nodes.txt --hostfile other.txt --reason x")
    shell.run("clusterctl exclude add a1 --reason x --for 0")
    shell.run("clusterctl exclude list --reason x")
    shell.run("clusterctl exclude remove a1")
    shell.write("exclude.toml", '[[exclude]]\nnode = "a1"\n')
    for line in ("exclude list", "nodes", "preflight", "launch demo"):
        shell.run(f"clusterctl {line}")
    shell.write("exclude.toml", '[[exclude]]\n"node" = "a1"\nreason = "x"\n')
    shell.run("clusterctl exclude remove a1")
    shell.write("exclude.toml", ''.join(f'[[exclude]]\nnode = "a{n}"\nreason = "x"\n' for n in (1, 2, 3)))  # fmt: skip
    shell.run("clusterctl preflight")


@case("exclude.use")
def exclude_use(shell: Shell) -> None:
    """preflight and launch leave excluded nodes out, and say so; an entry that is over is not applied."""
    start(shell, "n1", "n2", "n3")
    since = "since = 2026-03-01T08:00:00Z\n"
    held = f'[[exclude]]\nnode = "n2"\nreason = "Xid 79"\n{since}by = "ann@head"\n'
    over = f'[[exclude]]\nnode = "n3"\nreason = "fan"\n{since}until = 2026-03-02T08:00:00Z\n'
    shell.write("exclude.toml", held + over)
    shell.write("c.py", "model = dict(type='STDiT3-XL/2')\n")
    places = "--python /venv/bin/python --outputs /data --workdir /data"
    shell.run(f"clusterctl preflight {places} --skip time.skew,ssh.connect_time")
    shell.run(f"clusterctl preflight {places} -q -w n1,n2 --skip time.skew,ssh.connect_time")
    shell.run(f"clusterctl preflight {places} -w n2")
    shell.run("clusterctl launch c.py --dry-run --skip-preflight -w n2")
