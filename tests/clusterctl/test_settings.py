"""Options that had another name: it is accepted, and the help shows one name for one thing."""

from __future__ import annotations

import argparse

import click
import pytest
from click.testing import CliRunner

from clusterctl import cli
from clusterctl.settings import flag, option
from trainer.data.tools import simulate, stats


@click.command()
@option("--run", "run_dir", "A run directory.", former="--run-dir")
def command(run_dir: str) -> None:
    click.echo(run_dir)


@pytest.mark.parametrize("word", ["--run", "--run-dir"])
def test_option_is_known_by_its_former_name(word: str) -> None:
    done = CliRunner().invoke(command, [word, "outputs/001"])
    assert done.stdout == "outputs/001\n"
    warning = "warning: --run-dir is now --run\n"
    assert done.stderr == (warning if word == "--run-dir" else "")


@pytest.mark.parametrize("words", [["--stop"], ["--no-go"], ["--no-go", "--stop"], []])
def test_a_flag_is_known_by_its_former_name(words: list[str]) -> None:
    @click.command()
    @flag("--stop", "Stop.", former="--no-go")
    def command(stop: bool) -> None:
        click.echo(stop)

    assert CliRunner().invoke(command, words).stdout == f"{bool(words)}\n"


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
