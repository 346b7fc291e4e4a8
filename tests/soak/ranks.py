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
            found = start(Path(folder), world_size, list(SCENARIOS))
        for scenario, ranks in found.items():
            alive = [one for one in ranks if one]
            alike = len({(one["batches"], one["reason"], one["weights"]) for one in alive}) == 1
            seconds = max((one["seconds"] for one in alive), default=0.0)
            batches = ", ".join(sorted({str(one["batches"]) for one in alive}))
            print(f"| {scenario} | {world_size} | {batches} | {'yes' if alike else 'NO'} | {seconds:.1f} |")
            if not alike:
                differs.append(scenario)
    if differs:
        raise SystemExit(f"Ranks differ: {', '.join(differs)}")


if __name__ == "__main__":
    main()
