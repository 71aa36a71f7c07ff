"""What `clusterctl top` does with its options: choose the feed, then the screens or one reading."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from clusterctl.errors import UsageError
from clusterctl.output import Output
from clusterctl.runs.find import find_run
from clusterctl.settings import Settings
from dashboards.feeds.run_dir import steady_clock
from dashboards.model.samples import Feed
from dashboards.once import as_json, collect, exit_code, write
from dashboards.select_feed import live_feed, patience_s


def top(
    settings: Settings,
    output: Output,
    *,
    run_dir: Path | None,
    replay: Path | None,
    record: Path | None,
    speed: float | None,
    demo: bool,
    interval: float,
    once: bool,
    readonly: bool | None,
    theme: str | None,
    web: bool,
    host: str,
    port: int,
) -> int:
    """Show the screens until the user leaves, or print one reading; returns the exit code.

    `readonly` None: only in a replay and in a browser. Raises `UsageError` for options that exclude
    each other, folders that hold no run, unknown themes and a `web` without textual-serve;
    `HostfileError` when there is neither a hostfile nor a run.
    """
    if web and (once or output.json):
        raise UsageError("--web shows screens: it goes neither with --once nor with --json")
    if record is not None and (replay is not None or web or once):
        raise UsageError("--record is for live screens: not with --replay, --web or --once")
    if speed is not None and replay is None:
        raise UsageError("--speed is for --replay")
    if theme is not None:  # else textual would be loaded for one reading as text
        from dashboards.tui.widgets.palette import check_theme

        check_theme(theme)
    if replay is None:
        feed = live_feed(settings, output, run_dir=run_dir, demo=demo, interval_s=interval)
        if record is not None:
            from dashboards.recording.writer import Recording

            feed = Recording(feed, record, interval_s=interval)
    else:
        from dashboards.feeds.replay import open_replay

        place = replay if replay.is_file() else find_run(str(replay))
        try:
            feed = open_replay(place, clock=steady_clock(), speed=speed)
        except OSError as error:
            raise UsageError(f"{replay} cannot be read: {error}") from None
    if web:
        feed.close()  # every page has its own
        from dashboards.web.app import page_arguments, serve

        arguments = page_arguments(click.get_current_context())
        arguments += ["--readonly"] if readonly is None else []
        return serve(arguments, host=host, port=port, say=output.warn)  # under -q, too
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if once or output.json or not (is_terminal or in_browser()):
        return _print_once(feed, settings, output, interval)
    # Where a shell has exported these, Textual believes them and never notices a resize.
    for name in () if in_browser() else ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    # Only here: one reading as text must not load textual.
    from dashboards.operations.actions import Actions, ClusterActions
    from dashboards.tui.app import TopApp, run

    first = "cluster" if feed.nodes else "run"
    actions: Actions = Actions()
    if demo:
        from dashboards.operations.demo_actions import DemoActions

        actions = DemoActions(feed.nodes)
    elif replay is None and settings.hostfile.exists():
        actions = ClusterActions(settings)
    if readonly is None:
        readonly = replay is not None or in_browser()
    app = TopApp(
        feed, interval_s=interval, first=first, actions=actions, readonly=readonly, theme=theme
    )
    run(app)
    return 0


def in_browser() -> bool:
    """Whether textual-serve started this process for a page."""
    return os.environ.get("TEXTUAL_DRIVER", "").endswith(":WebDriver")


def _print_once(feed: Feed, settings: Settings, output: Output, interval: float) -> int:
    """One reading: as long as the slowest node may take, and not longer."""
    state = collect(feed, interval_s=interval, patience_s=patience_s(settings.limits))
    note = getattr(feed, "note", "")  # of a recording that is damaged
    code = exit_code(state) or (3 if note else 0)
    if output.json:
        output.document("top", **{**as_json(state), "exit_code": code}, note=note)
    else:
        write(state, output)
        if note:
            output.warn(note, "warn")
    return code
