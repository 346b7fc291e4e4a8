"""DDP, FSDP and accumulation: gains of several GPUs, and the output for one GPU."""

from dataclasses import replace

import pytest

import lightning_predict as lp
from tests.advice.example_steps import REPORTED, trained
from tests.known import known


def test_gains_of_ddp_and_fsdp_are_reciprocal() -> None:
    ddp, fsdp = (lp.advise(trained(256), ["8xL4"], strategy=name) for name in ("ddp", "fsdp"))
    assert ddp["ddp"].why_not == "the strategy is ddp already"
    assert fsdp["fsdp"].why_not == "the strategy is fsdp already"
    there, back = ddp["fsdp"].simulated_gain, fsdp["ddp"].simulated_gain
    assert there is not None
    assert there * known(back) == pytest.approx(1.0)
    direct = [lp.predict(trained(256), ["8xL4"], strategy=name)["8xL4"].iteration_seconds for name in ("ddp", "fsdp")]
    assert there == pytest.approx(direct[0] / direct[1])
    assert known(ddp["fsdp"].memory) < known(ddp.before["8xL4"].memory_bytes)


def test_sharding_does_not_apply_to_one_gpu() -> None:
    told = lp.advise(trained(256), ["L4"])
    assert told["fsdp"].verdict == "no"
    assert told["fsdp"].why_not == told["ddp"].why_not == "one L4 shares nothing; ask for several, as 8xL4"
    assert "fsdp, ddp (one L4 shares nothing" in " ".join(told.text(verbose=True).split())


def test_accumulation_saves_updates_and_gradient_exchanges() -> None:
    """Of n batches an update, n - 1 updates are saved."""
    step = trained(256)
    told = lp.advise(step, ["L4"])
    plain, both = (lp.predict(step, ["L4"], strategy=name)["L4"] for name in ("ddp", "accumulate=2"))
    share = plain.step.optimizer_seconds / plain.device_seconds
    assert 0.1 < share < 0.9
    assert both.iteration_seconds == pytest.approx(plain.iteration_seconds * (2 - share))
    assert told["accumulation"].simulated_gain == pytest.approx(2 / (2 - share))
    assert known(lp.advise(step, ["8xL4"])["accumulation"].simulated_gain) > 1


def test_accumulated_run_takes_each_batch_once() -> None:
    """1,000 batches are 250 steps of four, each three batches without the update longer than a recorded one."""
    step = trained(256)
    plain, four = (lp.predict(step, ["L4"], iterations=1000, strategy=name)["L4"] for name in ("ddp", "accumulate=4"))
    assert four.iterations == 250
    update = plain.iteration_seconds * plain.step.optimizer_seconds / plain.device_seconds
    assert known(four.total_seconds) == pytest.approx(known(plain.total_seconds) - 750 * update)


def test_measured_step_on_several_gpus_is_scaled_by_two_predictions() -> None:
    """Both sides hold the measured step, so the gain comes from two predictions alone."""
    step = replace(trained(256), gpu_reported_name=REPORTED, world_size=8, step_seconds=(0.05, 0.05))
    told = lp.advise(step, ["8xA100-SXM-40GB"])
    assert told.on == "8xA100-SXM-40GB"
    assert told.before["8xA100-SXM-40GB"].iteration_seconds == pytest.approx(0.05)
    plain = step.untimed()
    ddp, fsdp = (
        lp.predict(plain, ["8xA100-SXM-40GB"], strategy=name)["8xA100-SXM-40GB"].iteration_seconds
        for name in ("ddp", "fsdp")
    )
    assert told["fsdp"].simulated_gain == pytest.approx(ddp / fsdp)
