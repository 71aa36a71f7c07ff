"""One round of each fault, three random ones in a run, and a short run without any. Slow."""

from __future__ import annotations

import pytest

from tests.faults import cases  # noqa: F401 - enters the faults
from tests.faults.campaign import Campaign
from tests.faults.fault import FAULTS
from tests.faults.healthy import healthy
from tests.faults.interrupts import stopped_run
from tests.faults.random_runs import random_run
from tests.lab import why_not

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    if (reason := why_not()) is not None:
        pytest.skip(f"lab nodes: {reason}")
    return Campaign(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("name", list(FAULTS))
def test_fault(campaign: Campaign, name: str) -> None:
    assert campaign.run(FAULTS[name], seed=0).wrong == ()


@pytest.mark.parametrize("seed", range(2))
def test_three_random_faults(campaign: Campaign, seed: int) -> None:
    assert campaign.run(random_run(seed), seed).wrong == ()


@pytest.mark.parametrize("seed", range(3))
def test_ctrl_c_on_a_terminal(campaign: Campaign, seed: int) -> None:
    assert campaign.run(stopped_run(seed), seed).wrong == ()


def test_resets_of_connections_restart_nothing(campaign: Campaign) -> None:
    assert campaign.run(healthy(150), seed=0).wrong == ()
