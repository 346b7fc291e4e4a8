"""Records the profiles that the tests read, on the machine at hand.

Run it from the repository's root; on a machine with CUDA the files are of real kernels::

    python -m tests.gpu.record_traces OUTPUT_FOLDER

Each file holds two marked steps of one workload of `tests/record/workloads.py`, gzip-compressed, without
the names of the machine and of its folders.
"""

import gzip
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from tests.record.workloads import mixed_step, perceptron_step

_PRIVATE = ("host_name", "traceName", "trace_id", "hostname", "distributedInfo")


def record(step: Callable[[], object], path: Path, *, device: str) -> None:
    """Profile two steps after two warm-ups and write them."""
    for _ in range(2):
        step()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
        for number in range(2):
            with record_function(f"ProfilerStep#{number}"):
                step()
        if device == "cuda":
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "profile.json"
        profiler.export_chrome_trace(str(raw))
        document = json.loads(raw.read_text(), strict=False)
    for key in _PRIVATE:
        document.pop(key, None)
    for event in document["traceEvents"]:
        event.get("args", {}).pop("Input Strides", None)
    path.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0))


def workloads(device: str) -> dict[str, Callable[[], object]]:
    """The steps to record, by name."""
    mixed = mixed_step(device)
    half = mixed_step(device)

    def in_bfloat16() -> None:
        half.optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = half.model(half.data).square().mean()
        loss.backward()
        half.optimizer.step()

    closure = perceptron_step(device, clip=True, foreach=True)

    def inside() -> torch.Tensor:
        closure.optimizer.zero_grad(set_to_none=False)
        loss: torch.Tensor = closure.model(closure.data).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(closure.model.parameters(), 1.0)
        return loss

    compiled = perceptron_step(device, dropout=0.0)
    compiled.model = torch.compile(compiled.model)  # type: ignore[assignment]
    return {
        "mixed": mixed,
        "mixed_bfloat16": in_bfloat16,
        "closure": lambda: closure.optimizer.step(inside),
        "compiled": compiled,
    }


def main(folder: str) -> None:
    """Record every workload into a folder."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for name, step in workloads(device).items():
        path = target / f"{device}_{name}.json.gz"
        record(step, path, device=device)
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
