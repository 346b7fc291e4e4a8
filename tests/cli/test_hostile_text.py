"""No command prints escape sequences of other people: of module names, price files and histories."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from lightning_predict.testing import example_trace
from tests.cli.conftest import Run
from tests.test_escaping import HOSTILE, RAW


@pytest.mark.parametrize(
    "words",
    [
        ("trace", "memory", "t.json", "--gpu", "T4"),
        ("trace", "explain", "t.json", "--gpu", "T4"),
        ("advise", "t.json", "--gpus", "T4"),
        ("predict", "t.json", "--gpus", "T4", "--iterations", "1000", "--profile", "p.toml", "--verbose"),
        ("offers", "--gpu", "T4", "--offers", "o.yaml"),
        ("history",),
    ],
)
def test_no_command_prints_foreign_escape_sequences(
    words: tuple[str, ...], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    named = tuple(replace(operation, module=HOSTILE) for operation in example_trace().operations)
    replace(example_trace(), operations=named).save("t.json")
    text = yaml.safe_dump(HOSTILE).strip()
    Path("o.yaml").write_text(
        f"- provider: {text}\n  instance: {text}\n  gpu: T4\n  usd_per_hour: 0.1\n  region: {text}\n"
        f"  date: 2026-11-01\n  source: {text}\n"
    )
    Path("p.toml").write_text("prices.file = 'o.yaml'")
    escape = "\\u001b]0;owned\\u0007\\u001b[2J"
    Path("h.jsonl").write_text(
        f'{{"fingerprint": "a", "gpu": "T4{escape}", "samples": 1, "step_seconds": 1, "predicted_seconds": 10, '
        f'"actual_seconds": 11, "date": "2026{escape}", "model": "m"}}\n'
    )
    monkeypatch.setenv("LIGHTNING_PREDICT_HISTORY", "h.jsonl")
    ran = run(*words)
    assert ran.code in (0, 2)
    assert not RAW.search(ran.out + ran.err)
