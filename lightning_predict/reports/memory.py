"""Report on the memory of a step and on changes that would reduce it: plain text, HTML, Markdown and JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lightning_predict.base.answers import json_value, sentences
from lightning_predict.base.escaping import html_text as escape
from lightning_predict.base.escaping import markdown_text
from lightning_predict.memory.breakdown import MemoryBreakdown, MemoryPart
from lightning_predict.memory.step_memory import MemoryNeed
from lightning_predict.reports.charts import share_chart
from lightning_predict.reports.format import FEW, duration, gibibytes, share

MODULES_SHOWN: Final = 10  # Maximum number of modules in a table. JSON output contains all modules.

_LOSS: Final = re.compile("loss|log_softmax|cross_entropy")
_BLOCK_NUMBER: Final = re.compile(r"(^|\.)\d+(?=\.|$)")

TITLE: Final = "Where the memory goes"


@dataclass(frozen=True, slots=True)
class MemorySaving:
    """Reduction of the process's memory by one change."""

    description: str
    bytes: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayToFit:
    """A set of changes with which a step fits."""

    gpu: str
    changes: tuple[str, ...]  # Descriptions of the changes; empty if the step fits as it is
    batch_size: int  # Samples of a batch: as recorded, or fewer, accumulated; the last batches may hold one less
    accumulate: int  # Number of batches per update: the fewest that give the recorded number of samples
    largest_batch: int
    seconds: float  # Seconds of these batches, which hold the recorded samples, and of their update
    process_bytes: float | None  # Memory of the process with `batch_size`; None if unknown
    fit_probability: float | None  # Probability that `batch_size` fits

    @property
    def number(self) -> int:
        """Number of changes, of which a smaller batch is one."""
        return len(self.changes) + (self.accumulate > 1)

    @property
    def sentence(self) -> str:
        """Sentence with the changes, the time, the memory and the largest batch."""
        smaller = f"{self.accumulate:,} batches of at most {self.batch_size:,}, accumulated"
        words = [*self.changes, *([smaller] if self.accumulate > 1 else [])] or ["no change"]
        chance = "" if self.fit_probability is None else f" (fits with {share(self.fit_probability)})"
        memory = "" if self.process_bytes is None else f", {gibibytes(self.process_bytes)} GiB{chance}"
        batch = f"up to {self.largest_batch:,} sample{'s'[: self.largest_batch - 1]} a batch would fit"
        return f"{' + '.join(words)}: {duration(self.seconds)} for the same samples{memory}; {batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Memory report of a step on a GPU."""

    gpu: str
    need: MemoryNeed
    breakdown: MemoryBreakdown  # Memory at the peak, by purpose and module
    savings: tuple[MemorySaving, ...]  # Changes that would reduce memory, largest first, each for itself
    largest: str | None  # Sentence that states the largest batch size that fits; None if unknown
    # Sets of changes with which the step fits: the smallest first, then those that take less time; None if it fits, or
    # no set was tried
    ways: tuple[WayToFit, ...] | None = None
    multi_gpu_sentence: str | None = None  # Sentence on the memory of each GPU of a layout; None for a single GPU
    last_resort: str = "Share the model among GPUs"  # What to do if `ways` is empty
    tried: tuple[str, ...] = ()  # Changes that were tried besides those of every step

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences that state whether the step fits, where its peak is, and the largest batch size."""
        process, chance = self.need.process, self.need.fit_probability
        peak = self.breakdown
        first = ""
        if process is not None and chance is not None:
            first = (
                f"A process of {gibibytes(process.middle)} GiB ({gibibytes(process.low)} to {gibibytes(process.high)}) "
                f"on the {self.gpu}; the chance that it fits is {share(chance)}."
            )
        part = peak.module or ("the loss" if _LOSS.search(peak.operation) else peak.operation)
        of = f"pass of {part}" if peak.phase in ("forward", "backward") else f"phase, at {peak.operation}"
        fullest = f"Peak in the {peak.phase} {of}."
        sentences = (self.multi_gpu_sentence, first, fullest, self.largest, *self.ways_in_words)
        return tuple(sentence for sentence in sentences if sentence)

    @property
    def ways_in_words(self) -> tuple[str, ...]:
        """Sentences on what to change so that the step fits."""
        if self.ways is None:
            return ()
        if not self.ways:
            tried = ", ".join(("16 bits", "checkpointing", "8-bit optimizer state", *self.tried))
            return (f"No set of {tried} and a smaller batch fits. {self.last_resort} (`lightning-predict parallel`).",)
        words = ("To fit, with the fewest changes", "Cheaper, with more changes", "Cheaper still")
        return tuple(f"{how}: {way.sentence}." for how, way in zip(words, self.ways, strict=False))

    @property
    def tables(self) -> tuple[tuple[tuple[str, str], list[tuple[str, str]]], ...]:
        """Tables of purposes, modules and savings, each as (headers, rows); empty tables are omitted."""
        peak = self.breakdown
        shown = folded_modules(peak.modules)[:MODULES_SHOWN]
        tables = (
            (("GiB", "for"), [(gibibytes(part.bytes), part.name) for part in peak.parts]),
            (("GiB", "activations of"), [(gibibytes(part.bytes), part.name) for part in shown]),
            (("GiB", "saving, per change"), [(gibibytes(saving.bytes), _in_words(saving)) for saving in self.savings]),
        )
        return tuple((head, rows) for head, rows in tables if rows)

    def lines(self) -> list[str]:
        """Return the lines for a terminal."""
        *tables, last = self.tables
        if self.savings:
            last = (last[0], last[1][:FEW])
        return [
            *sentences(self.sentences),
            *(line for head, rows in (*tables, last) for line in _plain_table(head, rows)),
        ]

    def html(self) -> str:
        """Return a section of the HTML report."""
        total = self.breakdown.total_bytes
        shares = {part.name: part.bytes / total for part in self.breakdown.parts}
        chart = share_chart([(self.gpu, shares, f"{gibibytes(total)} GiB")])
        words = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.sentences)
        tables = "".join(_html_table(head, rows) for head, rows in self.tables)
        return f"<section><h2>{TITLE}</h2>{words}<figure>{chart}</figure>{tables}</section>"

    def markdown(self) -> str:
        """Return a section in Markdown."""
        blocks = [f"## {TITLE}", " ".join(markdown_text(sentence) for sentence in self.sentences)]
        for head, rows in self.tables:
            lines = [f"| {head[0]} | {head[1]} |", "|---:|---|"]
            blocks.append("\n".join([*lines, *(f"| {size} | {markdown_text(name)} |" for size, name in rows)]))
        return "\n\n".join(blocks)

    def as_dict(self) -> dict[str, object]:
        """Return JSON-serializable values."""
        process, peak = self.need.process, self.breakdown
        return {
            "gpu": self.gpu,
            "memory_fit": self.need.memory_fit,
            "fit_probability": self.need.fit_probability,
            "process_bytes": None if process is None else [process.low, process.middle, process.high],
            "fullest": {"operation": peak.operation, "phase": peak.phase, "module": peak.module},
            "parts": {part.name: part.bytes for part in peak.parts},
            "modules": {part.name: part.bytes for part in peak.modules},
            "savings": {saving.description: saving.bytes for saving in self.savings},
            "ways_to_fit": json_value(self.ways or ()),
        }


def folded_modules(modules: Sequence[MemoryPart]) -> list[MemoryPart]:
    """Sum modules whose names differ only in the block number: `layers.3.mlp` becomes `layers.*.mlp (x 32)`."""
    sizes, counts = dict[str, float](), dict[str, int]()
    for module in modules:
        name = _BLOCK_NUMBER.sub(r"\1*", module.name, count=1)
        sizes[name] = sizes.get(name, 0.0) + module.bytes
        counts[name] = counts.get(name, 0) + 1
    names = {name: f"{name} (x {count})" if count > 1 else name for name, count in counts.items()}
    folded = [MemoryPart(names[name], size) for name, size in sizes.items()]
    return sorted(folded, key=lambda module: -module.bytes)


def _in_words(saving: MemorySaving) -> str:
    return f"{saving.description} ({saving.note})" if saving.note else saving.description


def _plain_table(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(size) for size, _ in (head, *rows))
    return ["", *(f"{size:>{width}}  {name}" for size, name in (head, *rows))]


def _html_table(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f'<tr><td class="right">{escape(size)}</td><td>{escape(name)}</td></tr>' for size, name in rows)
    return (
        f'<div class="scroll"><table class="sizes"><thead><tr><th scope="col" class="right">{head[0]}</th>'
        f'<th scope="col">{head[1]}</th></tr></thead><tbody>{cells}</tbody></table></div>'
    )
