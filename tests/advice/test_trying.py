"""Changes that really run, on this machine's processor; a clock that counts steps measures their gain."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from lightning_predict.advice.measured_change import try_change
from lightning_predict.base.errors import CaptureError, InvalidArgumentError
from lightning_predict.cli import main

RAN: list[tuple[int, torch.dtype]] = []  # What steps ran: their samples, and what their model computed in


class Net(nn.Module):
    """A convolution and a product, which notes what it computes in."""

    def __init__(self) -> None:
        super().__init__()
        self.images, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.norm(self.images(x)).mean((2, 3)))
        RAN.append((len(x), out.dtype))
        return out


def small_step(batch_size: int) -> Callable[[], object]:
    model, images, labels = Net(), torch.ones(batch_size, 3, 8, 8), torch.zeros(batch_size, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


@pytest.mark.parametrize(
    ("name", "dtype", "samples"),
    [
        ("bf16-mixed", torch.bfloat16, 2),
        ("bf16-true", torch.bfloat16, 2),
        ("channels_last", torch.float32, 2),
        ("fused_optimizer", torch.float32, 2),
        ("tf32", torch.float32, 2),
        ("batch_size", torch.float32, 4),
    ],
)
def test_step_runs_with_and_without_the_change(name: str, dtype: torch.dtype, samples: int) -> None:
    RAN.clear()
    random = torch.random.get_rng_state()
    tried = try_change(name, small_step, batch_size=2, steps=4, warmup_steps=1)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert RAN[-2:] == [(2, torch.float32), (samples, dtype)]
    assert len(RAN) == 2 * (1 + 1 + 4)  # to find its modules, to warm up, and four timed, of either side
    assert tried.gain.low <= tried.gain.middle <= tried.gain.high
    assert (tried.steps, tried.device) == (4, "cpu")


def test_measured_gain_is_throughput_after_over_before() -> None:
    now = 0.0

    def make_step(batch_size: int, change: str | None = None) -> Callable[[], object]:
        model, rows = nn.Linear(2, 2), torch.ones(batch_size, 2)

        def step() -> None:
            nonlocal now
            model(rows)
            now += {None: 3.0, "compile": 2.0, "batch_size": 4.0}[change]

        return step

    tried = try_change("compile", make_step, batch_size=2, steps=20, clock=lambda: now)
    assert (tried.before_seconds, tried.after_seconds) == (3.0, 2.0)
    assert tried.gain.middle == 1.5
    assert str(tried) == (
        "compile: 1.50× as fast (1.50–1.50) on this CPU: 3.00 s a step before, 2.00 s after, "  # noqa: RUF001
        "20 steps of each."
    )
    doubled = try_change("batch_size", make_step, batch_size=2, steps=4, clock=lambda: now)
    assert doubled.gain.middle == 1.5  # 2 samples in 3 s before, 4 in 4 s after


def test_untestable_change_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="'loader' cannot be made to a step from outside; give the function"):
        try_change("loader", small_step, batch_size=2)
    with pytest.raises(InvalidArgumentError, match="steps=3 is too few"):
        try_change("compile", small_step, batch_size=2, steps=3)
    with pytest.raises(InvalidArgumentError, match="change='fp12' is not known"):
        try_change("fp12", small_step, batch_size=2)
    with pytest.raises(CaptureError, match="calls no module"):
        try_change("tf32", lambda _samples: lambda: None, batch_size=2)
    with torch.device("meta"), pytest.raises(CaptureError, match="on the meta device, which takes no time; make its"):
        try_change("tf32", small_step, batch_size=2)


def test_command_tries_a_change_of_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import lightning_predict as lp

    script, trace = tmp_path / "a_training_script.py", tmp_path / "step.json.gz"
    script.write_text(
        "import torch\n"
        "def make_step(batch_size):\n"
        "    model, rows = torch.nn.Linear(8, 8), torch.ones(batch_size, 8)\n"
        "    return lambda: model(rows).sum().backward()\n"
    )
    lp.capture(small_step(2), samples_per_step=2).save(str(trace))
    words = ["advise", str(trace), "--gpus", "L4"]
    assert main([*words, "--try", "tf32", "--script", f"{script}:make_step"]) == 0
    assert "\nTried: tf32: " in capsys.readouterr().out
    for wrong, problem in (
        (["--try", "tf32"], "Give --try and --script together"),
        (["--try", "tf32", "--script", f"{script}:nothing"], "has no function 'nothing'"),
        (["--try", "tf32", "--script", "train.py"], "names no function of a file"),
    ):
        assert main([*words, *wrong]) == 2
        assert problem in capsys.readouterr().err
