"""Options that had another name: it is accepted, and the help shows one name for one thing."""

from __future__ import annotations

import argparse

import click
import pytest
from click.testing import CliRunner

from clusterctl import cli
from clusterctl.settings import option
from trainer.data.tools import simulate, stats


@click.command()
@option("--run", "run_dir", "A run directory.", former="--run-dir")
def command(run_dir: str) -> None:
    click.echo(run_dir)


@pytest.mark.parametrize("word", ["--run", "--run-dir"])
def test_option_is_known_by_its_former_name(word: str) -> None:
    assert CliRunner().invoke(command, [word, "outputs/001"]).output == "outputs/001\n"


def test_help_shows_one_name() -> None:
    assert "--run-dir" not in CliRunner().invoke(command, ["--help"]).output
    shown = (
        CliRunner().invoke(cli.group, ["top", "--help"]).output
    )  # alone it would keep an own --help
    assert "  --run RUN" in shown
    assert "--run-dir" not in shown


@pytest.mark.parametrize(("tool", "words"), [(stats, ["m.csv"]), (simulate, ["m.csv", "stage1"])])
def test_ranks_of_a_plan_have_one_name(tool, words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    tool.add_arguments(parser)
    assert "--world" not in parser.format_help()
    for name in ("--ranks", "--world"):
        assert parser.parse_args([*words, name, "24"]).world == 24
    assert parser.parse_args(words).world == (1 if tool is stats else 192)
