"""How long importing the callbacks takes beyond importing Lightning: `python -m benchmarks.speed.import_time`.

Each import is done in processes of its own, in turns, after one that leaves the bytecode, as pip does where it installs
a package; the median of the processor times.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from benchmarks.result_files import Figure, ResultConsole, write_run

BASELINE, OURS = "import lightning.pytorch", "import lightning.pytorch, lightning_predict.callbacks"


def seconds(code: str, environment: Mapping[str, str]) -> float:
    """Processor time of a process that runs this."""
    program = f"{code}; import time; print(time.process_time())"
    command = [sys.executable, "-c", program]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        seconds(OURS, environment)
        times: dict[str, list[float]] = {BASELINE: [], OURS: []}
        for _ in range(options.repeats):
            for code, taken in times.items():
                taken.append(seconds(code, environment))
    baseline, ours = (median(taken) for taken in times.values())
    figures = (
        Figure(name="import lightning.pytorch", value=f"{baseline:.2f}", unit="s"),
        Figure(name="with the callbacks", value=f"{ours:.2f}", unit="s"),
        Figure(name="the callbacks alone", value=f"{ours - baseline:.2f}", unit="s"),
    )
    console = ResultConsole(width=80)
    console.print_figures("Processor time of imports", figures)
    write_run(console, "speed-import", options.result)


if __name__ == "__main__":
    main()
