"""Secrets are found by name, place and shape, and what is none stays readable."""

from __future__ import annotations

import json
import re
import shlex
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.payload import mask_secrets as rules
from clusterctl.payload.mask_secrets import HIDDEN, hide, hide_words, is_secret

V = "V4lue-of-the-secret"
NAMES = (
    "WANDB_API_KEY", "HF_TOKEN", "MY_PASSWORD", "aws-secret", "MY_PAT", "DB_PWD", "LOGIN_AUTH",
    "HF_COOKIE", "AWS_ACCESS_KEY_ID", "apiKey", "dbPwd", "wandb_key", "x-api-key", "tracking.api_key",
    "SSH_PASSPHRASE", "sessionToken",
)  # fmt: skip
PLAIN = (
    "TOKENIZERS_PARALLELISM", "WANDB_MODE", "NCCL_DEBUG", "PATH", "max_steps", "author", "pattern",
    "keyboard", "passes", "data-path", "compat",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", PLAIN)
def test_names_that_are_none(name: str) -> None:
    assert not is_secret(name)


LINES = (
    f"train.py --x-api-key {V} --lr 1",
    f"train.py --x-api-key={V} --lr 1",
    f"train.py --wandb_key {V} --lr 1",
    f"train.py --wandb-api-key -{V} --lr 1",
    f"train.py --token --password {V}",
    f"train.py tracking.token={V}",
    f"""train.py --tracker '{{"name": "x", "api_key": "{V}"}}'""",
    f"""train.py --tracker "dict(name='x', api_key='{V} and more')" """,
    f"""train.py --tracker "dict(api_key={V}, x=1)" """,
    f"wandb login {V}",
    f"python /venv/bin/wandb login --relogin {V}",
    f"bash -c 'wandb login {V} && python train.py'",
    f"bash -c 'HF_TOKEN={V} python train.py --db-pwd {V}'",
    f"git clone https://me:{V}@host/repo",
    f"git clone https://{V}@host/repo",
    f"curl 'https://host/x?token={V}&page=2'",
    f"curl -H 'Authorization: Bearer {V}' host",
    f"curl -H 'Cookie: a=1; session={V}' host",
    f"curl -H 'X-Api-Key: {V}' host",
    f"curl -u me:{V} host",
    f"sshpass -p {V} ssh host",
    "train.py hf_V4lueofthesecret00",
)


@pytest.mark.parametrize("line", LINES)
def test_secrets_of_command_lines_are_hidden(line: str) -> None:
    words = shlex.split(line)
    for shown in (" ".join(hide_words(words)), hide(line)):
        if "sshpass" in line or " -u " in line or "--token --password" in line:
            shown = " ".join(hide_words(words))  # these need to know the words
        assert "V4lue" not in shown
        assert "secret" not in shown
        assert HIDDEN in shown
        assert "1" not in line[-1] or shown.endswith("1")


@pytest.mark.parametrize(
    "line",
    [
        "python -m trainer.train stage1 --dataset.data-path s3://bucket/a.csv --lr 1e-4 --max-steps 7",
        "torchrun --nproc_per_node 8 --rdzv_endpoint host:29500 train.py --optimizer adam",
        '/bin/sh -c \'exec "$@" >>"$CLUSTERCTL_RUN_DIR/ranks/$RANK.log" 2>&1\' rank python',
        "",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    words = shlex.split(line)
    assert hide_words(words) == words
    assert hide(line) == line


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'lr'", "rank 3: killed by SIGKILL", "unexpected token: x", "http://host:80/a@b",
        "ValueError: key: 3 is none of 1, 2", "ranks meet at 10.0.0.1:29500",
    ],
)  # fmt: skip
def test_messages_stay_readable(text: str) -> None:
    assert hide(text) == text


@given(st.lists(st.text(max_size=20), max_size=8), st.sampled_from(NAMES), st.integers(0, 8))
def test_value_behind_a_secret_option_never_shows(words: list[str], name: str, at: int) -> None:
    secret = "q7Zr-K2xW-value"
    for option in ([f"--{name}", secret], [f"--{name}={secret}"], [f"{name}={secret}"]):
        line = [*words[:at], *option, *words[at:]]
        assert secret not in " ".join(hide_words(line))
    assert secret not in hide(json.dumps({name: secret, "lr": 1}))
    assert secret not in hide(f"{name}={secret}")


@given(st.text(max_size=200))
def test_any_text_is_taken(text: str) -> None:
    hide(text)
    hide_words(text.split(" "))


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "a-",
        "--key ",
        "://",
        "key='",
        'a="',
        '"\\',
        "eyJaaaaaaaa-",
        "key: ",
        " ",
        "a ",
        "cookie:",
    ],
)
def test_long_text_does_not_take_long(piece: str) -> None:
    begun = time.process_time()
    hide(piece * (100_000 // len(piece)))
    assert time.process_time() - begun < 5.0


PIECES = (
    "--api-key", "-p", "token", "=", ": ", ":", "\t", "\n", "\u2003", " ", "'", '"', "https://", "me:x@", "Cookie",
    "authorization", "wandb", "login", "hf_", "ghp_", "ghr_", "sk-", "xoxb-", "eyJ", ".", "AIza", "a1b2c3d4e5f6g7h8",
    V, "{", "}", ",", "/",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_what_is_looked_for_first_leaves_nothing_out(text: str) -> None:
    wanted = re.sub(rules._SHAPE, HIDDEN, re.sub(rules._URL_USER, HIDDEN, text))
    wanted = re.sub(rules._HEADER, r"\1\2" + HIDDEN, wanted)
    wanted = rules._hide_values(rules._hide_values(wanted, rules._NAMED), rules._OPTION)
    assert hide(text) == re.sub(rules._LOGIN, r"\1 " + HIDDEN, wanted)
