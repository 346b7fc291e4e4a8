"""Profilers of the user's before, inside and across a recording: each in a process of its own, as torch may end it."""

from pathlib import Path
from typing import Final

import pytest

from tests.processes import run

PROGRAM: Final = """
import sys
from contextlib import suppress
import torch
from torch.profiler import ProfilerActivity, profile, schedule
from lightning_predict.base.errors import CaptureError
from lightning_predict.record.profiler import ProfilerRecorder

def theirs(**options):
    return profile(activities=[ProfilerActivity.CPU], acc_events=True, **options)

def work(size):
    return torch.ones(size).exp()

def names(profiler):
    return sorted({event.name for event in profiler.events()} & {"aten::exp", "aten::sin", "aten::cos"})

def ours(inside=lambda: None):
    recorder = ProfilerRecorder(cuda=False)
    try:
        recorder.start()
        work(2)
        inside()
        recorder.stop()
        return [o.name for o in recorder.trace().operations if o.name in ("aten::exp", "aten::sin")]
    except CaptureError as error:
        recorder.stop()
        return str(error).split(" ")[:3]
"""

CASES: Final[dict[str, tuple[str, str]]] = {
    "inside": (
        """
def inside():
    with theirs() as p: torch.ones(3).sin()
    print(names(p)); p.export_chrome_trace(sys.argv[1])
print(ours(inside))
print(ours())
""",
        "['aten::sin']\n['Another', 'profiler', 'started']\n['aten::exp']\n",
    ),
    "across the end": (
        """
p = theirs()
print(ours(p.start))
torch.ones(3).sin()
p.stop(); print(names(p)); p.export_chrome_trace(sys.argv[1])
print(ours())
""",
        "['Another', 'profiler', 'started']\n['aten::sin']\n['aten::exp']\n",
    ),
    "across the beginning": (
        """
p = theirs(); p.start()
torch.ones(3).sin()
print(ours())
p.stop(); print(names(p)); p.export_chrome_trace(sys.argv[1])
print(ours())
""",
        "['Another', 'profiler', 'is']\n['aten::sin']\n['aten::exp']\n",
    ),
    "warming up before": (
        """
p = theirs(schedule=schedule(wait=0, warmup=2, active=2, repeat=1))
p.start(); p.step()
print(ours())
for _ in range(4): torch.ones(3).sin(); p.step()
p.stop(); print(names(p)); p.export_chrome_trace(sys.argv[1])
print(ours())
""",
        "['Another', 'profiler', 'is']\n['aten::sin']\n['aten::exp']\n",
    ),
    "waiting around": (
        """
p = theirs(schedule=schedule(wait=2, warmup=1, active=1, repeat=1))
p.start()
print(ours())
for _ in range(4): p.step(); torch.ones(3).sin()
p.stop(); print(names(p)); p.export_chrome_trace(sys.argv[1])
print(ours())
""",
        "['aten::exp']\n['aten::sin']\n['aten::exp']\n",
    ),
    "of the autograd module inside": (
        """
def inside():
    global p
    with torch.autograd.profiler.profile(use_cpu=True) as p: torch.ones(3).sin()
print(ours(inside))
print(sorted({e.name for e in p.function_events} & {"aten::sin"}))
print(ours())
""",
        "['Another', 'profiler', 'started']\n['aten::sin']\n['aten::exp']\n",
    ),
    "ours on another thread inside": (
        """
import threading
found = []
def other(): found.append(ours())
def inside():
    thread = threading.Thread(target=other); thread.start(); thread.join()
print(ours(inside), found)
print(ours())
""",
        "['aten::exp'] [['Another', 'profiler', 'is']]\n['aten::exp']\n",
    ),
    "on another thread inside": (
        """
import threading
def other():
    with theirs(): torch.ones(3).sin()
def inside():
    thread = threading.Thread(target=other); thread.start(); thread.join()
print(ours(inside))
print("alive")
""",
        "['Another', 'profiler', 'started']\nalive\n",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_profiler_of_the_user_keeps_its_events(case: str, tmp_path: Path) -> None:
    program, printed = CASES[case]
    ran = run(PROGRAM + program, tmp_path / "theirs.json")
    assert (ran.returncode, ran.stdout) == (0, printed), ran.stderr[-3000:]


FIT: Final = """
import sys, warnings, logging
from pathlib import Path
import torch
from torch import nn
from lightning_predict.callbacks import RuntimePredictor
from tests.callbacks.small import Small

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
small = Small("lightning.pytorch")
folder = Path(sys.argv[1])

class Model(type(small.model(validates=True))):
    def __init__(self):
        super().__init__()
        self.network = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def training_step(self, batch, batch_idx):
        if sys.argv[2] == "own" and batch_idx % 2:
            with torch.profiler.profile() as theirs:
                loss = super().training_step(batch.unsqueeze(1), batch_idx)
            theirs.export_chrome_trace(str(folder / "theirs.json"))
            return loss
        return super().training_step(batch.unsqueeze(1), batch_idx)

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch.unsqueeze(1), batch_idx)

def fitted(callbacks):
    model = Model()
    profiler = small.lightning.profilers.PyTorchProfiler(folder, "theirs") if sys.argv[2] == "Trainer's" else None
    trainer = small.trainer(folder, max_epochs=3, callbacks=callbacks, profiler=profiler)
    torch.manual_seed(7)
    trainer.fit(model, small.loader(6), small.loader(4))
    return torch.nn.utils.parameters_to_vector(model.parameters())

plain = fitted([])
print(torch.equal(plain, fitted([RuntimePredictor(["T4"], print_table=False)])))
"""


@pytest.mark.parametrize("kind", ["Trainer's", "own"])
def test_profiler_in_a_fit_does_not_end_the_process(kind: str, tmp_path: Path) -> None:
    ran = run(FIT, tmp_path, kind)
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["True"]), ran.stderr[-3000:]
