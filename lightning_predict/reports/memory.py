"""Report on the memory of a step and on changes that would reduce it: plain text, HTML, Markdown and JSON.

Example::

    for line in report.lines():
        print(line)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from lightning_predict.cost.memory import MemoryNeed
from lightning_predict.memory.breakdown import MemoryBreakdown
from lightning_predict.reports.charts import share_chart
from lightning_predict.reports.escaping import html_text as escape
from lightning_predict.reports.escaping import markdown_text
from lightning_predict.reports.format import gibibytes, share

MODULES_SHOWN: Final = 10
"""Number of modules in tables; JSON has all of them."""

TITLE: Final = "Where the memory goes"


@final
@dataclass(frozen=True, slots=True)
class MemorySaving:
    """Reduction of the process's memory by one change.

    Attributes:
        words: Description of the change.
        bytes: Saved bytes.
        note: Its cost; empty if there is nothing to mention.
    """

    words: str
    bytes: float
    note: str = ""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Memory report of a step on a GPU.

    Attributes:
        gpu: Name of the GPU.
        need: Memory of the step, and whether it fits.
        breakdown: Memory at the peak, by purpose and module.
        savings: Changes that would help, each on its own, largest first.
        largest: The largest batch size, in words; None if unknown.
        several: Memory of each of several GPUs, in words; None for a single GPU.
    """

    gpu: str
    need: MemoryNeed
    breakdown: MemoryBreakdown
    savings: tuple[MemorySaving, ...]
    largest: str | None
    several: str | None = None

    @property
    def sentences(self) -> tuple[str, ...]:
        """Whether the step fits, where its peak is, and the largest batch size, in words."""
        process, chance = self.need.process, self.need.fit_probability
        found = self.breakdown
        module = "" if found.module is None else f" of {found.module}"
        first = ""
        if process is not None and chance is not None:
            first = (
                f"A process of {gibibytes(process.middle)} GiB ({gibibytes(process.low)} to {gibibytes(process.high)}) "
                f"on the {self.gpu}; the chance that it fits is {share(chance)}."
            )
        fullest = f"Fullest at {found.operation}{module} ({found.phase})."
        return tuple(one for one in (self.several, first, fullest, self.largest) if one)

    @property
    def tables(self) -> tuple[tuple[tuple[str, str], list[tuple[str, str]]], ...]:
        """Headers and rows of purposes, modules and savings, without empty tables."""
        found = self.breakdown
        shown = found.modules[:MODULES_SHOWN]
        tables = (
            (("GiB", "for"), [(gibibytes(one.bytes), one.name) for one in found.parts]),
            (("GiB", "activations of"), [(gibibytes(one.bytes), one.name) for one in shown]),
            (
                ("GiB", "saving, per change"),
                [(gibibytes(one.bytes), _in_words(one)) for one in self.savings],
            ),
        )
        return tuple((head, rows) for head, rows in tables if rows)

    def lines(self) -> list[str]:
        """Return the lines for a terminal."""
        return [*self.sentences, *(line for head, rows in self.tables for line in _plain_table(head, rows))]

    def html(self) -> str:
        """Return a section of the HTML report."""
        total = self.breakdown.total_bytes
        shares = {one.name: one.bytes / total for one in self.breakdown.parts}
        chart = share_chart([(self.gpu, shares, f"{gibibytes(total)} GiB")])
        words = "".join(f"<p>{escape(one)}</p>" for one in self.sentences)
        tables = "".join(_html_table(head, rows) for head, rows in self.tables)
        return f"<section><h2>{TITLE}</h2>{words}<figure>{chart}</figure>{tables}</section>"

    def markdown(self) -> str:
        """Return a section in Markdown."""
        blocks = [f"## {TITLE}", " ".join(markdown_text(one) for one in self.sentences)]
        for head, rows in self.tables:
            lines = [f"| {head[0]} | {head[1]} |", "|---:|---|"]
            blocks.append("\n".join([*lines, *(f"| {size} | {markdown_text(name)} |" for size, name in rows)]))
        return "\n\n".join(blocks)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-serializable values."""
        process, found = self.need.process, self.breakdown
        return {
            "gpu": self.gpu,
            "memory_fit": self.need.memory_fit,
            "fit_probability": self.need.fit_probability,
            "process_bytes": None if process is None else [process.low, process.middle, process.high],
            "fullest": {"operation": found.operation, "phase": found.phase, "module": found.module},
            "parts": {part.name: part.bytes for part in found.parts},
            "modules": {part.name: part.bytes for part in found.modules},
            "savings": {saving.words: saving.bytes for saving in self.savings},
        }


def _in_words(saving: MemorySaving) -> str:
    return f"{saving.words} ({saving.note})" if saving.note else saving.words


def _plain_table(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(size) for size, _ in (head, *rows))
    return ["", *(f"{size:>{width}}  {name}" for size, name in (head, *rows))]


def _html_table(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f'<tr><td class="right">{escape(size)}</td><td>{escape(name)}</td></tr>' for size, name in rows)
    return (
        f'<div class="scroll"><table class="sizes"><thead><tr><th scope="col" class="right">{head[0]}</th>'
        f'<th scope="col">{head[1]}</th></tr></thead><tbody>{cells}</tbody></table></div>'
    )
