"""A recorded step, and the command line as a function of its words."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.cli import main
from lightning_predict.cli.parsing import parsed


@dataclass(frozen=True)
class Ran:
    """Output of a command, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


Run = Callable[..., Ran]
Profile = Callable[[str], Path]


def arguments(*words: str) -> Mapping[str, Any]:
    """Arguments of a command's function, parsed from a command line."""
    call = parsed(words[0], words)
    assert call is not None
    return call.arguments


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in this process."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: str | Path) -> Ran:
        capsys.readouterr()
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return call


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    """Write a profile, and return its path."""

    def write(text: str) -> Path:
        path = tmp_path / "profile.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="session")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training step of a small network, recorded on the meta device."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 10))
        data = torch.randn(256, 512)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    path = tmp_path_factory.mktemp("trace") / "run.json.gz"
    lp.capture(step, samples_per_step=256).save(str(path))
    return path


def python(code: str) -> str:
    """Output of a fresh Python."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout
