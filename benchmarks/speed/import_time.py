"""How long importing the callbacks takes beyond importing Lightning: `python -m benchmarks.speed.import_time`.

Each import is done in processes of its own, in turns; the median of the processor times.
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median

REPEATS = 7
BASELINE, OURS = "import lightning.pytorch", "import lightning.pytorch, lightning_predict.callbacks"


def seconds(code: str) -> float:
    """Processor time of a process that runs this."""
    program = f"{code}; import time; print(time.process_time())"
    return float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Print the comparison."""
    times: dict[str, list[float]] = {BASELINE: [], OURS: []}
    for _ in range(REPEATS):
        for code, taken in times.items():
            taken.append(seconds(code))
    baseline, ours = (median(taken) for taken in times.values())
    print(f"lightning.pytorch: {baseline:.2f} s; with the callbacks: {ours:.2f} s, {ours - baseline:.2f} s more")


if __name__ == "__main__":
    main()
