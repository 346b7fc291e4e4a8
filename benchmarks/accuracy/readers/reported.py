"""Steps whose times and memory people reported, as scripts rebuild them (`cases/times` and `cases/memory`).

A script builds the reported steps, records them on the meta device and calls `case` (a time, in milliseconds) or `row`
(memory, in GiB) of a module `common`, which is provided here. Most need transformers, timm, diffusers or peft.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step
from benchmarks.accuracy.readers.pretraining import GIBIBYTE, MEBIBYTE
from benchmarks.accuracy.workloads.vision import import_torchvision

AROUND_A_STEP: Final = ("loader", "validation", "rendering")
"""Words of a note by which a reported time has more than the step."""

IN_DOUBT: Final = re.compile(r"(^|: )if |explanation: ")
"""Pattern of a note by which a setting that matters was guessed, so that several rows can have one figure."""


def reported_cases(data: Path) -> Iterator[Case]:
    """Run the scripts and yield their cases; a script that fails is named and left out."""
    import_torchvision()
    # Of the later scripts, no other table has Swin's steps under torch 1.7 and apex.
    scripts = ("cases/times/*.py", "cases/memory/*.py", "cases/times_2/swin_v100.py")
    for path in sorted(path for pattern in scripts for path in data.glob(pattern)):
        if path.stem not in ("common", "hf"):
            yield from cases_of(path)


def cases_of(path: Path) -> list[Case]:
    """Run one script in a folder of its own, which has the folder build."""
    cases: list[Case] = []
    before, folder = list(sys.path), Path.cwd()
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules["common"] = common_module(cases)
    try:
        with TemporaryDirectory() as own, redirect_stdout(StringIO()):
            (Path(own) / "build").mkdir()
            os.chdir(own)
            runpy.run_path(str(path.resolve()), run_name="__main__")
    except Exception:  # code of others, which may fail after its first cases
        traceback.print_exc()
    finally:
        os.chdir(folder)
        sys.path[:] = before
        for name in ("common", "hf"):
            sys.modules.pop(name, None)
    return cases


def common_module(found: list[Case]) -> types.ModuleType:
    """Return the module that the scripts import; their figures are added to `found`."""

    def timed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, float]:
        start = time.perf_counter()
        return function(*args, **kwargs), time.perf_counter() - start

    def case(name: str, *about: Any, layout: str | None = None, compiled: bool = False, **options: Any) -> None:
        _source, gpu, *_words, measured, trace = about
        note = options.get("note", "")
        doubt = bool(IN_DOUBT.search(note))
        surrounded = options.get("loader") == "yes" or any(word in note for word in AROUND_A_STEP)
        found.append(
            Case(
                source="setting guessed" if doubt else "step and more" if surrounded else "step",
                model=name,
                gpu=layout or gpu,
                step=Step(name=f"reported-{len(found)}-{name}".replace("/", "-"), record=lambda: trace),
                measured=measured / 1e3,
                count=options.get("scale", 1.0),
                release=None if compiled else options.get("release"),
                strategy=options.get("strategy") or "ddp",
                kernels=("compile",) if compiled else (),
                includes="loader or validation" if surrounded else "",
            )
        )

    def row(name: str, trace: lp.Trace, gpu: str, *, measured: float | None = None, **about: Any) -> None:
        gpus = about.get("n_gpus", 1)
        fits, doubt = about.get("fits"), bool(IN_DOUBT.search(about.get("note", "")))
        known: dict[str, Any] = {
            "source": "setting guessed" if doubt else "step",
            "model": name,
            "gpu": gpu if gpus == 1 or "x" in gpu.partition("-")[0] else f"{gpus}x{gpu}",
            "step": Step(name=f"reported-{len(found)}-{name}".replace("/", "-"), record=lambda: trace),
            "release": about.get("release"),
            "strategy": about.get("strategy") or "ddp",
        }
        if measured is not None:
            found.append(Case(measured=measured * GIBIBYTE, quantity=about.get("what", "allocated"), **known))
        if fits is not None and not doubt:
            found.append(Case(measured=float(fits), quantity="fits", **known))

    module = types.ModuleType("common")
    module.__dict__.update(torch=torch, lp=lp, timed=timed, case=case, row=row, G=GIBIBYTE, os=os, sys=sys, time=time)
    module.__dict__.update(gb=lambda size: size * 1e9 / GIBIBYTE)
    module.__dict__.update(mib=lambda size: size * MEBIBYTE / GIBIBYTE)
    return module
