"""Combine what may harm a run, and see that it ends as without us: `python -m tests.soak.combined [--sample N]`.

{no profiler, the Trainer's, the user's own before, inside and across a step} × {eager code, compiled code, attention in
evaluation mode, eager code that is profiled as on a GPU, a GPU whose profiler gives documents that were written before}
× {one thread, two Trainers in two threads, two ranks} × {no error, one of ours of each kind, KeyboardInterrupt}: each
is a process of its own, or two, run with and without our callbacks. Of two ranks one has the error. Compared values:
exit codes (such as a segmentation fault), weights, and leftovers in the process. What ends by itself without us
(torch's profilers in two threads at once) is counted apart. A sample takes minutes, all of them hours.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.callbacks.ranks import launched
from tests.processes import run

PROFILERS: Final = ("none", "Trainer's", "before", "inside", "across")
CODE: Final = ("eager", "compiled", "attention", "profiled", "cuda")
TRAINERS: Final = ("one", "two threads", "two ranks")
ERRORS: Final = ("none", "RuntimeError", "MemoryError", "StopIteration", "KeyboardInterrupt")
FUNCTIONS: Final = (
    "record/session.py CaptureSession.start",
    "record/session.py CaptureSession.trace",
    "record/hooks.py ModuleWatch._add_root",
    "record/profiler.py ProfilerRecorder.stop",
    "record/dispatch.py DispatchRecorder._record",
    "prediction.py predict_workload",
    "reports/table.py plain_table",
)
"""Where errors are injected, at the first call; a case takes one of them."""


@dataclass(frozen=True)
class Case:
    """One combination.

    Attributes:
        profiler: Profiler that runs, and when.
        code: What is trained.
        trainers: How many, and what each is: a thread, or a rank.
        error: Injected into a function of ours.
        function: The function.
    """

    profiler: str
    code: str
    trainers: str
    error: str
    function: str


def cases(sample: int | None, seed: str) -> list[Case]:
    """List the combinations, or as many of them as are asked for, drawn by a hash of their names."""
    every = []
    for profiler, code, trainers, error in itertools.product(PROFILERS, CODE, TRAINERS, ERRORS):
        if error == "KeyboardInterrupt" and trainers != "one":
            continue  # Python raises it in the main thread alone, and a rank that ends ends the others
        if profiler != "none" and trainers == "two threads" and code != "eager":
            continue  # torch has one profiler in a process, and may end it where ours and theirs run in two threads
        functions = FUNCTIONS if error != "none" else FUNCTIONS[:1]
        every += [Case(profiler, code, trainers, error, function) for function in functions]
    every.sort(key=lambda case: hashlib.sha256(f"{seed} {case}".encode()).digest())
    return every[:sample]


def outcome(case: Case, folder: Path, *, with_callbacks: bool) -> tuple[tuple[int | None, ...], str]:
    """Run a case; its exit codes, and its printed weights and leftovers, with other failures."""
    words = ("tests.soak.combined_fit", json.dumps(asdict(case)), folder, str(with_callbacks))
    if case.trainers == "two ranks":
        ended = launched(*words, world_size=2, folder=folder.parent)
    else:
        ended = [run("-m", *words)]
    lines = [line for one in ended for line in one.stdout.splitlines() if line.startswith("outcome ")]
    return tuple(one.returncode for one in ended), "; ".join(lines)


def harm(case: Case, plain: tuple[tuple[int | None, ...], str], folder: Path) -> str | None:
    """Run a case with our callbacks; return the differences from a run without them; None without differences."""
    found = outcome(case, folder, with_callbacks=True)
    if case.error == "KeyboardInterrupt":  # it ends the run where it comes, and with it the user's own profiler
        theirs = case.profiler != "none" and found[1].endswith("left a profiler")
        is_alike = found[0] in ((0,), (1,)) and (found[1].endswith("left nothing") or theirs)
    else:
        is_alike = found == plain
    return None if is_alike else f"{case}: {found} and not {plain}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=int, default=None, help="cases to draw; all where left out")
    parser.add_argument("--seed", default="0")
    options = parser.parse_args()
    start, counts, harmed = time.monotonic(), Counter[str](), []
    plain: dict[tuple[str, str, str], tuple[tuple[int | None, ...], str]] = {}
    with tempfile.TemporaryDirectory() as place:
        for number, case in enumerate(cases(options.sample, options.seed)):
            key = (case.profiler, case.code, case.trainers)
            if key not in plain:
                plain[key] = outcome(case, Path(place, f"plain{number}"), with_callbacks=False)
            if any(plain[key][0]):
                counts["impossible"] += 1
                continue
            counts[case.error] += 1
            words = harm(case, plain[key], Path(place, f"ours{number}"))
            if words is not None:
                harmed.append(case)
                print(words, file=sys.stderr, flush=True)
    print(f"{counts.pop('impossible', 0)} cases end without us as well")
    print(f"{sum(counts.values())} cases, seed {options.seed}, {time.monotonic() - start:.0f} s\n")
    print("| error | cases | other exit code, weights or remains than without us |\n|---|---:|---:|")
    for error in ERRORS:
        print(f"| {error} | {counts[error]} | {sum(case.error == error for case in harmed)} |")
    if harmed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
