"""Faults as data: their limits, and their size."""

from __future__ import annotations

from tests.faults.fault import FAULTS, RECOVERED_S, Fault, fault, with_size
from tests.faults.rig import Round
from tests.faults.setting import Setting


def entered(**options: object) -> Fault:
    def inject(_: Round) -> None:
        raise AssertionError("nothing is launched here")

    fault("T", "a test", **options)(inject)  # type: ignore[arg-type]
    return FAULTS.pop("T")


def test_only_what_is_restarted_has_time_to_recover() -> None:
    assert entered(cause="signal-9").recovered_s == RECOVERED_S
    assert entered(cause="signal-9", recovered_s=60.0).recovered_s == 60.0
    assert entered(cause="signal-9", recovered_s=None).recovered_s is None
    assert entered().recovered_s is None
    assert entered(cause="signal-9", exit_code=93).recovered_s is None


def test_limits_grow_with_the_ranks_and_with_what_else_the_machine_does() -> None:
    one = entered(setting=Setting(steps=70, spares=1))
    sized = with_size(one, nodes=4, ranks=2, busy=3.0).setting
    assert (sized.world, sized.slower, sized.steps, sized.spares) == (8, 6.0, 70, 1)
    assert with_size(one, 2, 1).setting.slower == 1.0
