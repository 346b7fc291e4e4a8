"""Combine what may harm a run, and see that it ends as without us: `python -m tests.soak.combined [--sample N]`.

{no profiler, the Trainer's, the user's own before, inside and across a step} × {eager code, compiled code, attention in
evaluation mode, eager code that is profiled as on a GPU} × {one thread, two Trainers in two threads} × {no error, one
of ours of each kind, KeyboardInterrupt}: each is a process of its own, run with and without our callbacks. What is
compared: exit codes (a segmentation fault is one), weights, and what is left behind. What ends by itself without us
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

from tests.processes import run

PROFILERS: Final = ("none", "Trainer's", "before", "inside", "across")
CODE: Final = ("eager", "compiled", "attention", "profiled")
THREADS: Final = (1, 2)
ERRORS: Final = ("none", "RuntimeError", "MemoryError", "StopIteration", "KeyboardInterrupt")
FUNCTIONS: Final = (
    "tracing/session.py CaptureSession.start",
    "tracing/session.py CaptureSession.trace",
    "tracing/hooks.py ModuleWatch._add_root",
    "tracing/profiler.py ProfilerRecorder.stop",
    "tracing/dispatch.py DispatchRecorder._record",
    "prediction.py predict_workload",
    "reports/table.py plain_table",
)
"""Where errors are injected, at the first call; a case takes one of them."""


@dataclass(frozen=True)
class Case:
    """One combination.

    Attributes:
        profiler: Whose runs, and when.
        code: What is trained.
        threads: Trainers, each in a thread.
        error: Injected into a function of ours.
        function: The function.
    """

    profiler: str
    code: str
    threads: int
    error: str
    function: str


def cases(sample: int | None, seed: str) -> list[Case]:
    """List the combinations, or as many of them as are asked for, drawn by a hash of their names."""
    every = []
    for profiler, code, threads, error in itertools.product(PROFILERS, CODE, THREADS, ERRORS):
        if error == "KeyboardInterrupt" and threads > 1:
            continue  # Python raises it in the main thread alone
        if profiler != "none" and threads > 1 and code != "eager":
            continue  # torch has one profiler in a process, and may end it where ours and theirs run in two threads
        functions = FUNCTIONS if error != "none" else FUNCTIONS[:1]
        every += [Case(profiler, code, threads, error, function) for function in functions]
    every.sort(key=lambda case: hashlib.sha256(f"{seed} {case}".encode()).digest())
    return every[:sample]


PROGRAM: Final = """
import json, sys
from tests.soak.combined_fit import fit
fit(json.loads(sys.argv[1]), sys.argv[2], with_callbacks=sys.argv[3] == "True")
"""


def outcome(case: Case, folder: Path, *, with_callbacks: bool) -> tuple[int | None, str]:
    """Run a case; its exit code, and what it printed of weights and what it left, with what else went wrong."""
    ran = run(PROGRAM, json.dumps(asdict(case)), folder, with_callbacks, seconds=300)  # type: ignore[arg-type]
    lines = [line for line in ran.stdout.splitlines() if line.startswith("outcome ")]
    return ran.returncode, "; ".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=int, default=None, help="cases to draw; all where left out")
    parser.add_argument("--seed", default="0")
    options = parser.parse_args()
    start, counts, harmed = time.monotonic(), Counter[str](), []
    plain: dict[tuple[str, str, int], tuple[int | None, str]] = {}
    with tempfile.TemporaryDirectory() as place:
        for number, case in enumerate(cases(options.sample, options.seed)):
            key = (case.profiler, case.code, case.threads)
            if key not in plain:
                plain[key] = outcome(case, Path(place, f"plain{number}"), with_callbacks=False)
            if plain[key][0] != 0:
                counts["impossible"] += 1
                continue
            found = outcome(case, Path(place, f"ours{number}"), with_callbacks=True)
            counts[case.error] += 1
            if case.error == "KeyboardInterrupt":  # it ends the run where it comes, and with it the user's own profiler
                theirs = case.profiler != "none" and found[1].endswith("left a profiler")
                is_alike = found[0] in (0, 1) and (found[1].endswith("left nothing") or theirs)
            else:
                is_alike = found == plain[key]
            if not is_alike:
                harmed.append(case)
                print(f"{case}: {found} and not {plain[key]}", file=sys.stderr, flush=True)
    print(f"{counts.pop('impossible', 0)} cases end without us as well")
    print(f"{sum(counts.values())} cases, seed {options.seed}, {time.monotonic() - start:.0f} s\n")
    print("| error | cases | other exit code, weights or remains than without us |\n|---|---:|---:|")
    for error in ERRORS:
        print(f"| {error} | {counts[error]} | {sum(case.error == error for case in harmed)} |")
    if harmed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
