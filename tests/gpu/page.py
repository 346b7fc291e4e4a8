"""The page at the end of `make test-gpu`: which facts hold on this machine, for a reader and as JSON for a report.

Every test in this folder is a fact; its name is the sentence. Its measurements are next to it (`record_property`).
Example::

    lines = page([Fact("a step is recorded with its kernels", "holds", "1,204 kernels")], {"gpu": "Tesla T4"})
"""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch

Outcome = Literal["holds", "fails", "skipped"]
MARKS: Final[dict[Outcome, str]] = {"holds": "+", "fails": "!", "skipped": "."}
FILE: Final = Path("build") / "gpu-facts.json"


@dataclass(frozen=True)
class Fact:
    """One fact."""

    words: str  # Statement of the fact
    outcome: Outcome  # Whether it is
    detail: str = ""  # Measurement, or the reason for skipping


def machine() -> dict[str, Any]:
    """Describe the tested machine; nothing that names the machine or its user."""
    known: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        known |= {
            "gpu": properties.name,
            "gpus": torch.cuda.device_count(),
            "memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
    return known


def page(facts: Sequence[Fact], described: dict[str, Any]) -> list[str]:
    """Return the lines of the page."""
    counts = {outcome: sum(fact.outcome == outcome for fact in facts) for outcome in MARKS}
    head = ", ".join(f"{value} {name}" if name == "gpus" else f"{value}" for name, value in described.items())
    lines = [f"Facts on {head}", ""]
    for fact in facts:
        detail = f"  [{fact.detail}]" if fact.detail else ""
        lines.append(f"  {MARKS[fact.outcome]} {fact.words}{detail}")
    said = ", ".join(f"{outcome} {count}" for outcome, count in counts.items() if count)
    return [*lines, "", f"{len(facts)} facts: {said}. As JSON for a report: {FILE}"]


def write(facts: Sequence[Fact], described: dict[str, Any], path: Path = FILE) -> None:
    """Write the facts as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": described, "facts": [asdict(fact) for fact in facts]}
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
