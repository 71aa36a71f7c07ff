"""A command whose unknown options belong to another program, behind its own words."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import click

from clusterctl.errors import UsageError


class PassingCommand(click.Command):
    """Passes every word that it does not know on, as the parameter `overrides`.

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
        takes_value: dict[str, bool] = {}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option):
                names = [*option.opts, *option.secondary_opts]
                takes_value.update(dict.fromkeys(names, not (option.is_flag or option.count)))
        ours: list[str] = []
        theirs: list[str] = []
        words = iter(args)
        for word in words:
            name, equals, _ = word.partition("=")
            letters = word[1:] if word.startswith("-") and not word.startswith("--") else ""
            if word == "--":
                theirs += words
            elif name in takes_value:
                ours.append(word)
                if takes_value[name] and not equals:
                    ours += [value for value in [next(words, None)] if value is not None]
            elif len(letters) > 1 and all(takes_value.get(f"-{one}") is False for one in letters):
                ours.append(word)  # -vv, -qv
            elif letters or word.startswith("--"):
                near = difflib.get_close_matches(name, takes_value, 1, cutoff=0.88)
                # `--nproc_per_nod 8` must not end up in the trainer, minutes later on every rank.
                if near and "." not in name:
                    hint = f"for the trainer: -- {name} …"
                    raise UsageError(f"no option {name}; did you mean {near[0]}?", hint=hint)
                theirs.append(word)
            else:
                (theirs if theirs else ours).append(word)
        return ours, theirs
