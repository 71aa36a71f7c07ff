"""What `clusterctl top` does with its options: choose the feed, then the screens or one look."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.errors import UsageError
from clusterctl.fanout import WIDTH
from clusterctl.render import Output
from clusterctl.settings import Settings
from clusterctl.transport.base import Limits
from dashboards import once as look
from dashboards.demo_feed import DemoFeed
from dashboards.feeds import Feed, ReplayFeed, RunDirFeed, Together, newest_run, steady_clock
from trainer.telemetry import FILE

if TYPE_CHECKING:
    from dashboards.actions import Actions

OUTPUTS = Path("outputs")


def top(
    settings: Settings,
    output: Output,
    *,
    run_dir: Path | None,
    replay_dir: Path | None,
    speed: float,
    demo: bool,
    interval: float,
    once: bool,
    readonly: bool | None,
    theme: str | None,
    web: bool,
    host: str,
    port: int,
) -> int:
    """Show the screens until the user leaves, or take one look; returns the exit code.

    `readonly` None: only in a replay and in a browser. Raises `UsageError` for options that exclude
    each other, folders that hold no run, unknown themes and a `web` without textual-serve;
    `HostfileError` when there is neither a hostfile nor a run.
    """
    if web and (once or output.json):
        raise UsageError("--web shows screens: it goes neither with --once nor with --json")
    if sum(bool(choice) for choice in (run_dir, replay_dir, demo)) > 1:
        raise UsageError("--run, --replay and --demo exclude each other")
    feed, first = _choose(settings, output, run_dir, replay_dir, speed, demo, interval)
    if web:
        feed.close()  # every page has its own
        chosen = {
            "run": run_dir, "replay": replay_dir, "speed": speed, "demo": demo, "interval": interval,
            "theme": theme, "readonly": readonly is not False, "no-readonly": readonly is False,
        }  # fmt: skip
        from dashboards.web import as_arguments, serve

        arguments = as_arguments({**cluster_options(settings), **chosen})
        return serve(arguments, host=host, port=port, say=output.note)
    if once or output.json or not _has_terminal():
        return _look(feed, settings, output, interval)
    # Where a shell has exported these, Textual believes them and never notices a resize.
    for name in () if in_browser() else ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    # Only here: one look as text must not load textual.
    from dashboards.app import main

    actions = _actions(settings, feed, demo=demo, is_replay=replay_dir is not None)
    if readonly is None:
        readonly = replay_dir is not None or in_browser()
    main(feed, interval_s=interval, first=first, actions=actions, readonly=readonly, theme=theme)
    return 0


def cluster_options(settings: Settings) -> dict[str, object]:
    """The options that make these settings again; only those that differ from the usual ones."""
    usual = Limits()
    limits = settings.limits
    return {
        "hostfile": settings.hostfile if settings.hostfile.exists() else None,
        "only": settings.only,
        "without": settings.without,
        "fanout": settings.width if settings.width != WIDTH else None,
        "connect-timeout": limits.tcp_s if limits.tcp_s != usual.tcp_s else None,
        "command-timeout": limits.command_s if limits.command_s != usual.command_s else None,
        "deadline": limits.run_s,
        "accept-new": settings.accept_new,
    }


def in_browser() -> bool:
    """Whether textual-serve started this process for a page."""
    return os.environ.get("TEXTUAL_DRIVER", "").endswith(":WebDriver")


def _actions(settings: Settings, feed: Feed, *, demo: bool, is_replay: bool) -> Actions | None:
    """Who carries out what the screens offer; None where there are no nodes."""
    from dashboards.actions import ClusterActions, LocalActions

    if demo:
        from dashboards.demo_actions import DemoActions

        return DemoActions(feed.nodes)
    if is_replay or not settings.hostfile.exists():
        return LocalActions()
    return ClusterActions(settings)


def _has_terminal() -> bool:
    if in_browser():
        return True
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _choose(
    settings: Settings,
    output: Output,
    run_dir: Path | None,
    replay_dir: Path | None,
    speed: float,
    demo: bool,
    interval: float,
) -> tuple[Feed, str]:
    """The feed, and the screen to begin with."""
    clock = steady_clock()
    if demo:
        return DemoFeed(clock=clock), "cluster"
    if replay_dir is not None:
        try:
            return ReplayFeed(_run_of(replay_dir), clock=clock, speed=speed), "run"
        except OSError as error:
            raise UsageError(f"{replay_dir} cannot be read: {error}") from None
    feeds: list[Feed] = []
    run = RunDirFeed(
        OUTPUTS if run_dir is None else _run_of(run_dir),
        clock=clock,
        interval_s=interval,
        newest_below=run_dir is None,
    )
    has_run = run_dir is not None or newest_run(OUTPUTS) is not None
    if settings.hostfile.exists() or not has_run or settings.only or settings.without:
        # Only here: paramiko takes a quarter of a second to import.
        from dashboards.ssh_feed import SshFeed

        feeds.append(
            SshFeed(
                settings.nodes(),
                settings.transport(),
                limits=settings.limits,
                clock=clock,
                interval_s=interval,
                width=settings.width,
                source=str(settings.hostfile),
            )
        )
    else:
        output.note(f"no hostfile {settings.hostfile}: only the run is shown")
    return Together([*feeds, run]), "cluster" if feeds else "run"


def _run_of(path: Path) -> Path:
    """The run directory itself, or the newest one in a folder of runs. Raises `UsageError`."""
    if (path / FILE).is_file() or (path / "plan.json").is_file():
        return path
    newest = newest_run(path) if path.is_dir() else None
    if newest is None:
        raise UsageError(
            f"{path} holds no run: no {FILE} in it nor one level below",
            hint="give a run directory, such as outputs/001-STDiT3-demo",
        )
    return newest


def _look(feed: Feed, settings: Settings, output: Output, interval: float) -> int:
    """One look: as long as the slowest node may take, and not longer."""
    limits = settings.limits
    patience_s = limits.run_s or limits.tcp_s + limits.handshake_s + limits.channel_s + 5.0
    state = look.collect(feed, interval_s=interval, patience_s=patience_s)
    if output.json:
        output.document("top", **look.as_json(state))
    else:
        look.write(state, output)
    return look.exit_code(state)
