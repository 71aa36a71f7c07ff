"""The hostfile, and what all commands say about it."""

from __future__ import annotations

from tests.interface.cases import case
from tests.interface.shell import Shell


@case("nodes.good")
def good(shell: Shell) -> None:
    """A hostfile in each of the ways it can be listed."""
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
