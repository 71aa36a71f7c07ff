"""The verbs of python -m trainer.data that work on tables."""

from __future__ import annotations

from pathlib import Path

from tests.interface.cases import case
from tests.interface.shell import Shell
from tests.trainer.data.tables import write_table

DATA = "python -m trainer.data"
CONFIG = 'bucket_config = {"360p": {51: (1.0, 4), 102: ((1.0, 0.5), 2)}, "720p": {51: (0.5, 1)}}\n'


def _tables(count: int = 40) -> None:
    write_table(Path("a.csv"), count)
    write_table(Path("b.csv"), 10, seed=2)


@case("trainer.data.usage")
def usage(shell: Shell) -> None:
    """Verbs and files that are no good, for all verbs alike."""
    _tables(3)
    shell.run(f"{DATA}")
    shell.run(f"{DATA} flter a.csv o.csv")
    shell.run(f"{DATA} convert a.csv")
    shell.run(f"{DATA} convert a.csv o.csv --fast")
    shell.run(f"{DATA} convert missing.csv o.csv")
    shell.run(f"{DATA} convert a.csv o.txt")
    shell.run(f"{DATA} convert a.csv missing/o.csv")
    shell.write("empty.csv", "")
    shell.run(f"{DATA} convert empty.csv o.csv")
    shell.write("header.csv", "file,words\nx,y\n")
    shell.run(f"{DATA} convert header.csv o.csv")
    shell.write("there.csv", "x")
    shell.run(f"{DATA} convert a.csv there.csv")
    shell.write("wrong.csv", "path,text,num_frames\na,x,5\nb,x,five\nc,x\n")
    shell.run(f"{DATA} convert wrong.csv w.csv")
    shell.run(f"{DATA} convert wrong.csv p.csv --max-wrong-rows 1")


@case("trainer.data.filter")
def rows(shell: Shell) -> None:
    """Rows chosen by conditions; conditions that are none."""
    _tables()
    shell.run(f"{DATA} filter a.csv o.csv --min-frames 100 --max-frames 200 --where 'vmaf > 0.2'")
    shell.run(f"{DATA} filter a.csv p.csv --min-frames 100 -q")
    shell.run(f"{DATA} filter a.csv o.csv")
    shell.run(f"{DATA} filter a.csv q.csv --checked")
    shell.run(f"{DATA} filter a.csv q.csv --where 'lang == en'")
    shell.run(f"{DATA} filter a.csv q.csv --where 'vmaf > much'")
    shell.run(f"{DATA} filter a.csv q.csv --where 'text ~ ('")
    shell.run(f"{DATA} filter a.csv q.csv --min-frames many")
    shell.write("scored.csv", "path,text,vmaf\na,x,0.5\nb,x,\nc,x,good\n")
    shell.run(f"{DATA} filter scored.csv q.csv --where 'vmaf > 0.2'")


@case("trainer.data.sets")
def sets(shell: Shell) -> None:
    """Tables joined, compared, without what is twice."""
    _tables()
    write_table(Path("twice.csv"), 20, copies=5)
    shell.run(f"{DATA} merge a.csv b.csv o.csv")
    shell.run(f"{DATA} difference a.csv b.csv d.csv")
    shell.run(f"{DATA} intersect a.csv b.csv i.csv")
    shell.run(f"{DATA} dedupe twice.csv u.csv")
    shell.run(f"{DATA} dedupe twice.csv v.csv --on size")
    shell.write("c.csv", "path,text,lang\nx,y,en\n")
    shell.run(f"{DATA} merge a.csv c.csv m.csv")
    shell.run(f"{DATA} merge a.csv")


@case("trainer.data.rewrite")
def rewrite(shell: Shell) -> None:
    """Tables in another form, captions cleaned, a folder of shards."""
    _tables()
    shell.write("words.csv", "path,text\na,A &amp; B https://x.y/z\nb,plain\n")
    shell.run(f"{DATA} clean-captions words.csv cleaned.csv")
    shell.run(f"{DATA} convert a.csv a.parquet")
    shell.run(f"{DATA} shard a.csv --rows 16")
    shell.run(f"{DATA} shard a.csv --rows 16")
    shell.run(f"{DATA} shard a.csv --rows 0")


@case("trainer.data.stats")
def stats(shell: Shell) -> None:
    """What is in a manifest, what a config makes of it; text and JSON."""
    _tables(200)
    shell.write("c.py", CONFIG)
    shell.run(f"{DATA} stats a.csv")
    shell.run(f"{DATA} stats a.csv c.py --world 2")
    shell.run(f"{DATA} stats a.csv c.py --world 2 --epochs 2 --json")
    shell.run(f"{DATA} stats a.csv --json")
    shell.run(f"{DATA} stats a.csv --picture x.jpg")
    shell.run(f"{DATA} stats missing.csv c.py")
    shell.run(f"{DATA} stats a.csv missing.py")
    shell.run(f"{DATA} stats a.csv c.py --world 0")


@case("trainer.data.simulate")
def simulate(shell: Shell) -> None:
    """How long ranks wait for each other."""
    line = f"{DATA} simulate openvid stage1 --ranks 8 --rows 4000 --windows 1 4"
    shell.run(line)
    shell.run(f"{line} --json")
    shell.run(f"{DATA} simulate openvid stage1 --rows 500 --ranks 4000")
    shell.run(f"{DATA} simulate nothing stage1")
    shell.run(f"{DATA} simulate openvid stage1 --ranks -1")
