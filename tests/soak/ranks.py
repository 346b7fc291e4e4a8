"""All scenarios of several ranks, with two and with four of them: `python -m tests.soak.ranks`.

The same scenarios run on two ranks in `tests/callbacks/test_ranks.py`. Printed is what each came to: after how many
batches all ranks ended, whether they decided alike, and the longest wait beyond a run without faults.
"""

import tempfile
from pathlib import Path

from tests.callbacks.ranks import SCENARIOS, start


def main() -> None:
    """Print the table."""
    print("| scenario | ranks | batches | alike | seconds |\n|---|---:|---:|---|---:|")
    differs = []
    for world_size in (2, 4):
        with tempfile.TemporaryDirectory() as folder:
            outcomes = start(Path(folder), world_size, list(SCENARIOS))
        for scenario, ranks in outcomes.items():
            alive = [rank for rank in ranks if rank]
            alike = len({(rank["batches"], rank["reason"], rank["weights"]) for rank in alive}) == 1
            seconds = max((rank["seconds"] for rank in alive), default=0.0)
            batches = ", ".join(sorted({str(rank["batches"]) for rank in alive}))
            print(f"| {scenario} | {world_size} | {batches} | {'yes' if alike else 'NO'} | {seconds:.1f} |")
            if not alike:
                differs.append(scenario)
    if differs:
        raise SystemExit(f"Ranks differ: {', '.join(differs)}")


if __name__ == "__main__":
    main()
