"""Predict steps whose times and memory people reported: `python -m benchmarks.accuracy.reported_cases CASES`.

The folder has `times` and `memory`, with a script for each source. A script builds the reported steps, records them on
the meta device and calls `case` (a time) or `row` (memory) of a module `common`, which this command provides. Needs
transformers, timm, diffusers and peft; a script that fails is named.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import statistics
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, final

import torch
from rich.table import Table

import lightning_predict as lp
from benchmarks.result_files import ResultConsole, write_result
from benchmarks.runs import RUNS
from benchmarks.scored_steps import WIDTH
from benchmarks.training.report import report_table
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import GIBIBYTE, MEBIBYTE, gigabytes_to_bytes, seconds_to_milliseconds

AROUND_A_STEP: Final = ("loader", "validation", "rendering")
"""Words of a note by which a reported time has more than the step."""

IN_DOUBT: Final = re.compile(r"(^|: )if |explanation: ")
"""Pattern of a note by which a setting that matters was guessed, so that several rows can have one figure."""


GUESSED: Final = ", setting guessed"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A reported figure with its prediction.

    Attributes:
        name: Name of the case.
        gpu: Our name of the layout.
        kind: `step` or `step and more` (in milliseconds), `allocated` or `process` (in GiB), with `, setting guessed`
            if a setting was guessed.
        measured: The figure.
        predicted: Our interval.
    """

    name: str
    gpu: str
    kind: str
    measured: float
    predicted: Interval[float]

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted.middle / self.measured - 1

    @property
    def is_inside(self) -> bool:
        """Whether the interval holds the figure."""
        return self.predicted.low <= self.measured <= self.predicted.high


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedVerdict:
    """Whether a reported run fitted, and the predicted probability.

    Attributes:
        name: Name of the case.
        fits: Whether the run fitted.
        chance: Predicted probability that the run fits.
    """

    name: str
    fits: bool
    chance: float

    @property
    def is_right(self) -> bool:
        """Whether the run was predicted to end as reported."""
        return (self.chance >= 0.5) == self.fits


def common_module(found: list[Reported], verdicts: list[ReportedVerdict]) -> types.ModuleType:
    """Return the module that the scripts import; predictions are added to `found` and `verdicts`."""

    def timed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, float]:
        start = time.perf_counter()
        return function(*args, **kwargs), time.perf_counter() - start

    def case(name: str, *about: Any, layout: str | None = None, compiled: bool = False, **options: Any) -> None:
        _source, gpu, *_words, measured, trace = about
        where, note, scale = layout or gpu, options.get("note", ""), options.get("scale", 1.0)
        settings = {key: options[key] for key in ("release", "strategy", "host") if options.get(key) is not None}
        if compiled:
            from lightning_predict.advice.what_if import what_if

            (prediction,) = what_if("compile", trace, [where]).values()
        else:
            (prediction,) = lp.predict(trace, [where], history=False, **settings).values()
        seconds = (prediction.iteration_seconds_low, prediction.iteration_seconds, prediction.iteration_seconds_high)
        interval = Interval(*(seconds_to_milliseconds(scale * value) for value in seconds))
        kind = "step and more" if any(word in note for word in AROUND_A_STEP) else "step"
        kind = f"step{GUESSED}" if IN_DOUBT.search(note) else kind
        found.append(Reported(name=name, gpu=where, kind=kind, measured=measured, predicted=interval))

    def row(name: str, trace: lp.Trace, gpu: str, *, measured: float | None = None, **about: Any) -> None:
        kind = about.get("what", "allocated")
        doubt = GUESSED if IN_DOUBT.search(about.get("note", "")) else ""
        settings = {key: about[key] for key in ("release", "strategy") if about.get(key) is not None}
        gpus = about.get("n_gpus", 1)
        layout = gpu if gpus == 1 or "x" in gpu.partition("-")[0] else f"{gpus}x{gpu}"
        (prediction,) = lp.predict(trace, [layout], history=False, **settings).values()
        size, fits, chance = getattr(prediction.memory, kind), about.get("fits"), prediction.memory.fit_probability
        if fits is not None and chance is not None and not doubt:
            verdicts.append(ReportedVerdict(name=name, fits=fits, chance=chance))
        if measured is not None and size is not None:
            interval = Interval(*(value / GIBIBYTE for value in (size.low, size.middle, size.high)))
            found.append(Reported(name=name, gpu=layout, kind=kind + doubt, measured=measured, predicted=interval))

    module = types.ModuleType("common")
    module.__dict__.update(torch=torch, lp=lp, timed=timed, case=case, row=row, G=GIBIBYTE, os=os, sys=sys, time=time)
    module.__dict__.update(gb=lambda size: gigabytes_to_bytes(size) / GIBIBYTE)
    module.__dict__.update(mib=lambda size: size * MEBIBYTE / GIBIBYTE)
    return module


def run_script(path: Path, found: list[Reported], verdicts: list[ReportedVerdict]) -> str | None:
    """Run one script in a folder of its own, which has the folder build; return its error."""
    before, folder = list(sys.path), Path.cwd()
    path = path.resolve()
    sys.path.insert(0, str(path.parent))
    sys.modules["common"] = common_module(found, verdicts)
    try:
        with TemporaryDirectory() as own, redirect_stdout(StringIO()):
            (Path(own) / "build").mkdir()
            os.chdir(own)
            runpy.run_path(str(path), run_name="__main__")
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    finally:
        os.chdir(folder)
        sys.path[:] = before
        for name in ("common", "hf"):
            sys.modules.pop(name, None)
    return None


def verdict_table(verdicts: Sequence[ReportedVerdict]) -> Table:
    """Right verdicts by how the runs ended. Several figures of one run count once."""
    runs = {(one.name.rstrip("12"), one.fits): one for one in verdicts}.values()
    table = report_table("Reported runs: does it fit?", ("runs",), ("n", "right"))
    for name, fits in (("fitted", True), ("did not fit", False)):
        own = [one for one in runs if one.fits == fits]
        table.add_row(name, str(len(own)), str(sum(one.is_right for one in own)))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each row and a summary by kind of figure; 1 if a script failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cases", type=Path, help="folder with the folders times and memory")
    parser.add_argument("--only", default="", help="part of a script's name; writes no result")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    found: list[Reported] = []
    verdicts: list[ReportedVerdict] = []
    failed = 0
    for path in sorted([*options.cases.glob("times/*.py"), *options.cases.glob("memory/*.py")]):
        if path.stem in ("common", "hf") or options.only not in path.name:
            continue
        error = run_script(path, found, verdicts)
        if error is not None:
            failed += 1
            print(f"{path.parent.name}/{path.name}: {error}", file=sys.stderr)
    console = ResultConsole(width=WIDTH)
    table = report_table("Reported steps", ("case", "GPU", "figure"), ("error %", "inside"))
    for one in found:
        table.add_row(one.name, one.gpu, one.kind, f"{100 * one.error:+.1f}", "yes" if one.is_inside else "no")
    console.print(table)
    summary = report_table("Reported steps, by figure", ("figure",), ("n", "median |error| %", "inside"))
    for kind in (*dict.fromkeys(one.kind for one in found), "all"):
        rows = [one for one in found if kind in (one.kind, "all")]
        error_text = f"{100 * statistics.median(abs(one.error) for one in rows):.1f}"
        summary.add_row(kind, str(len(rows)), error_text, str(sum(one.is_inside for one in rows)))
    console.print(summary)
    console.print(verdict_table(verdicts))
    if options.result is not None and not options.only:
        write_result(console.result(RUNS["reported-cases"]), options.result)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
