"""What is carried to the ranks arrives byte by byte, and secrets show nowhere on the way."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.clusterctl.launch.harness import WAIT, command_line, tagged, wait_until

ODD = (
    "semi;echo INJECTED",
    '--dataset.data-path=it\'s "here"',
    "$(touch INJECTED) `id` $HOME ${x}",
    "$$ $$$ ${local_rank} $local_rank",
    "two\nlines\ttab",
    "* ? [a] ~ \\ \\n",
    "ünïcode ☃",
    "",
    "-x",
)
SAY = (
    "import json, os, sys\n"
    "names = json.loads(os.environ['NAMES'])\n"
    "print(json.dumps([sys.argv[1:], {n: os.environ.get(n) for n in names}]))\n"
)


def test_arguments_and_values_arrive_verbatim_on_every_node(bench) -> None:
    values = {f"ODD_{index}": text for index, text in enumerate(ODD)}
    names = json.dumps(list(values))
    env = [f"NAMES={names}", *(f"{name}={value}" for name, value in values.items())]
    result, plan = bench.run(SAY, *ODD, env=env)
    assert result.ok, result
    for rank in (0, 1):
        log = (plan.run_dir / "ranks" / f"{rank}.log").read_text()
        assert json.loads(log) == [list(ODD), values]
    assert not (plan.workdir / "INJECTED").exists()


def test_only_named_kinds_of_the_heads_environment_are_passed(bench) -> None:
    head = {
        "NCCL_IB_HCA": "=mlx5_1", "WANDB_MODE": "offline", "HF_HOME": "/data/hf",
        "FOO_TOKEN": "foreign", "AWS_SECRET_ACCESS_KEY": "foreign", "LD_PRELOAD": "x.so",
    }  # fmt: skip
    result, plan = bench.run(SAY, head_env=head, env=[f"NAMES={json.dumps(list(head))}"])
    assert result.ok, result
    passed = json.loads((plan.run_dir / "ranks" / "1.log").read_text())[1]
    assert passed == {
        name: value if name.startswith(("NCCL_", "WANDB_", "HF_")) else None
        for name, value in head.items()
    }


@pytest.mark.long
def test_secrets_show_in_no_command_line_file_or_message(bench) -> None:
    secrets = {"WANDB_API_KEY": "wandb-0123456789", "HF_TOKEN": "hf-9876543210"}
    program = (
        "import os, signal\n"
        "print('key', os.environ['WANDB_API_KEY'], os.environ['HF_TOKEN'], flush=True)\n" + WAIT
    )
    secrets["MY_PAT"], plain = (
        "pat-1234567890",
        {"MODE": "open-sesame-55", "DB_PWD": "pwd-555666777"},
    )
    env = ["MY_PAT", *(f"{name}={value}" for name, value in plain.items())]
    words = [
        "--x-key",
        "-pw-1112223",
        "--cfg",
        "{'api_key': 'pw-2223334'}",
        "tracker.token=pw-3334445",
    ]
    secrets.update(plain, x_key="pw-1112223", api_key="pw-2223334", token="pw-3334445")
    head_env = {name: secrets[name] for name in ("WANDB_API_KEY", "HF_TOKEN", "MY_PAT")}
    launch = bench.launch(bench.plan(program, *words, head_env=head_env, env=env))
    pids = launch.pids(2)
    run_id = launch.plan.run_id
    lines = [command_line(pid).decode(errors="replace") for pid in _everything()]
    assert any("trainer.starter" in line for line in lines)
    # What the user gives the trainer as an argument is one, for all to see.
    seen = [line for line in lines if "--x-key" not in line]
    wait_until(lambda: launch.log(0).endswith("up\n"))
    os.kill(pids[0], signal.SIGKILL)
    result = launch.result()
    assert result.last_lines == ("key *** ***", "up")
    head_files = [*launch.plan.run_dir.glob("*.json*"), launch.plan.run_dir / ".run-id"]
    assert {"plan.json", "events.jsonl"} <= {path.name for path in head_files}
    seen += [path.read_text() for path in head_files]
    seen += [*launch.plan.render(commands=True), repr(result)]
    for value in secrets.values():
        assert not [text for text in seen if value in text]
    assert tagged(run_id) == []


def _everything() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
