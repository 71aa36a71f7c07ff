"""A command whose unknown options belong to another program, behind its own words."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import click

from clusterctl.errors import UsageError


class PassingCommand(click.Command):
    """Hands every word that it does not know on, as the parameter `overrides`.

    click's own `ignore_unknown_options` would take `--lr` for the HOSTFILE where that is left out.
    The rule: from the first unknown option on, words that are no option of ours (nor the value of
    one) are the other program's; behind `--` all are.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours, theirs = self._split(ctx, args)
        rest = super().parse_args(ctx, ours)
        ctx.params["overrides"] = tuple(theirs)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[TRAINER OPTIONS]"]

    def _split(self, ctx: click.Context, args: Sequence[str]) -> tuple[list[str], list[str]]:
        takes_value = self._options(ctx)
        ours: list[str] = []
        theirs: list[str] = []
        words = iter(args)
        for word in words:
            name, equals, _ = word.partition("=")
            if word == "--":
                theirs += words
            elif name in takes_value:
                ours.append(word)
                if takes_value[name] and not equals:
                    ours += [value for value in [next(words, None)] if value is not None]
            elif _is_cluster_of_flags(word, takes_value):
                ours.append(word)
            elif word.startswith("-") and word != "-":
                self._refuse_typo(name, takes_value)
                theirs.append(word)
            else:
                (theirs if theirs else ours).append(word)
        return ours, theirs

    def _options(self, ctx: click.Context) -> dict[str, bool]:
        """Our options by every name they have: whether a value follows."""
        found: dict[str, bool] = {}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option):
                names = [*option.opts, *option.secondary_opts]
                found.update(dict.fromkeys(names, not (option.is_flag or option.count)))
        return found

    def _refuse_typo(self, name: str, known: dict[str, bool]) -> None:
        """`--nproc_per_nod 8` must not end up in the trainer, minutes later and on every rank."""
        if "." not in name and (near := difflib.get_close_matches(name, known, 1, cutoff=0.88)):
            raise UsageError(
                f"no option {name}; did you mean {near[0]}?", hint=f"for the trainer: -- {name} …"
            )


def _is_cluster_of_flags(word: str, takes_value: dict[str, bool]) -> bool:
    """`-vv`, `-qv`."""
    return (
        len(word) > 2
        and word[0] == "-" != word[1]
        and all(takes_value.get(f"-{letter}") is False for letter in word[1:])
    )
