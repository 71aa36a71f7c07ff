"""A program is told from a configuration by its text, and is never run as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.config.load import load
from trainer.config.program import why_program
from trainer.errors import ConfigError

GUARDED = (
    'import torch\ndef main():\n    open("{ran}", "w")\nif __name__ == "__main__":\n    main()\n'
)
PLAIN = """
import socket, time
for i in range(3):
    with open("{ran}", "w") as file:
        file.write(socket.gethostname())
    time.sleep(0.1)
"""
NO_GUARD = (
    'import os\nlr = 1e-4\nmodel = dict(type="x")\ndef main():\n    open("{ran}", "w")\nmain()\n'
)
DDP = 'import torch.distributed as dist\nopen("{ran}", "w")\ndist.init_process_group("gloo")\n'
BY_ASSIGNMENT = 'from lightning import Trainer\nmodel = open("{ran}", "w")\ntrainer = Trainer()\n'
NO_KEY = 'import json\nanswer = open("{ran}", "w")\n'
LOOP = 'lr = 1.0\nwhile open("{ran}", "w"):\n    break\n'
SHELL = "#!/usr/bin/env bash\nlr=1\ntouch {ran}\n"
BINARY = "\x7fELF\0\0"
IN_BLOCK = 'try:\n    import torch\nexcept ImportError:\n    pass\nmodel = open("{ran}", "w")\n'


@pytest.mark.parametrize(
    "text", [GUARDED, PLAIN, NO_GUARD, DDP, BY_ASSIGNMENT, NO_KEY, LOOP, IN_BLOCK, SHELL, BINARY]
)
def test_a_program_is_refused_and_not_run(tmp_path: Path, text: str) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "train.py").write_text(text.format(ran=ran))
    with pytest.raises(ConfigError, match="this is a program, not a configuration") as caught:
        load(tmp_path / "train.py")
    assert "own-program.md" in (caught.value.hint or "")
    assert not ran.exists()
    (tmp_path / "config.py").write_text('_base_ = "train.py"\nlr = 1e-4\n')
    if text != NO_KEY:  # a base may hold what its children use
        with pytest.raises(ConfigError, match=r"train\.py.*this is a program"):
            load(tmp_path / "config.py")
        assert not ran.exists()


@pytest.mark.parametrize(
    "text",
    [
        "lr = 1e-4\n",
        'import os\nlr = float(os.environ.get("LR", "1e-4"))\n',
        "bucket_config = {}\nbucket_config.update({})\nprint('hello')\n",
        "_sizes = [1, 2]\nbucket_config = {}\nfor n in _sizes:\n    bucket_config[str(n)] = {}\n",
        '"""What it is for."""\nlr: float = 1.0\n',
        "def times(n):\n    return 2 * n\nmax_steps = times(4)\n",
        "num_frames = 51\nprompt_path = 'x.txt'\n",  # a file of upstream's for sampling
        "lerning_rate = 1e-4\n",  # a wrong key has a sentence of its own
        "lr = = 3\n",
        "# all defaults\n",
        "import sys\nsys.path.append('/somewhere')\nlr = 1.0\n",
        '_base_ = ["a.py"]\nimport math\n',
    ],
)
def test_a_configuration_is_no_program(text: str) -> None:
    from trainer.config.upstream import KNOWN

    assert why_program(text.encode(), KNOWN) is None


@pytest.mark.parametrize("name", ["train.sh", "job.sbatch", "config.yaml"])
def test_a_file_of_another_kind_is_no_configuration(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("lr = 1.0\n")
    with pytest.raises(ConfigError, match=r"a configuration is a \.py file") as caught:
        load(tmp_path / name)
    assert "own-program.md" in (caught.value.hint or "")


def test_name_of_a_launcher_is_no_configuration() -> None:
    with pytest.raises(ConfigError, match="there is no config torchrun") as caught:
        load("torchrun")
    assert "own-program.md" in (caught.value.hint or "")
