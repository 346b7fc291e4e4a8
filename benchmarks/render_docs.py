"""Render the pages of `docs/templates` into `docs`, with the figures of `benchmarks/results`: `make docs`.

A template is Markdown with placeholders:

    {{lin: time, by source / all / median %}}      the cell of a table: title (or a part of it), row, column
    {{lin: cases}}  {{lin: date}}                  number of cases, day of the run
    {{table lin: each}}                            the table; below it command, day, cases, fitted constants
    {{table lin: each | rows: all | columns: n, median %}}   some rows (names or a regular expression), some columns
    {{headline}}                                   errors of the sources on which nothing was chosen, worst first
    {{sources}}                                    errors of times of all sources, worst first
    {{accuracy}}                                   errors by kind of model and generation of GPU
    {{operations}}                                 errors of the bundled weights, from their manifest
    {{paper: 11.8 %}}                              a figure that a publication states, as it is

`docs/templates/blocks/NAME.md` fills the part of a hand-written page between `<!-- results: NAME -->` and
`<!-- end of results -->`.

Example::

    python -m benchmarks.render_docs            # writes the pages and lightning_predict/reports/published_cases.json
    python -m benchmarks.render_docs --check    # exit code 1 if a page is stale
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.result_files import FOLDER, Figure, Result, ResultTable, read_result
from benchmarks.runs import SOURCES
from lightning_predict.reports import published_cases
from lightning_predict.reports.published_cases import ModelKind, PublishedCase, cases_text

ROOT: Final = Path(__file__).parent.parent
TEMPLATES: Final = ROOT / "docs" / "templates"
MANIFEST: Final = ROOT / "lightning_predict" / "weights" / "files" / "manifest.json"

PLACEHOLDER: Final = re.compile(r"\{\{\s*(.+?)\s*\}\}")
BLOCKS: Final = TEMPLATES / "blocks"
"""Templates of blocks within hand-written pages; the other templates are whole pages of `docs`."""

BLOCK: Final = re.compile(r"(<!-- results: ([\w-]+) -->\n)(.*?)(<!-- end of results -->)", re.DOTALL)
"""A block of a hand-written page, with the name of its template."""

GENERATIONS: Final[Mapping[str, Sequence[str]]] = {
    "up to Volta": ("kepler", "maxwell", "pascal", "volta"),
    "Turing": ("turing",),
    "Ampere": ("ampere",),
    "Ada": ("ada",),
    "Hopper": ("hopper",),
    "Blackwell": ("blackwell",),
}
"""Columns of the table of errors, with NVIDIA's architectures of each."""

KINDS: Final[Sequence[ModelKind]] = (
    "language model",
    "vision transformer",
    "convolutional network",
    "diffusion",
    "recurrent network",
    "recommender",
)

WITH_LOADER: Final = (SOURCES["gavel"], SOURCES["sia"])
"""Sources whose steps hold a data loader that decides many of them: left out of the table of errors."""

GOOD: Final = 0.10
FAIR: Final = 0.20
FEW: Final = 3  # Minimum number of cases for a verdict


@cache
def result(name: str) -> Result:
    """Read a result of the repository."""
    return read_result(name)


def results() -> Iterator[Result]:
    """Give all results, by name."""
    for path in sorted(FOLDER.glob("*.json")):
        yield result(path.stem)


def all_cases() -> tuple[PublishedCase, ...]:
    """Collect the published steps of all results; of one that two results have, the first."""
    cases: dict[tuple[str, ...], PublishedCase] = {}
    for one in results():
        for case in one.published:
            cases.setdefault((case.source, case.model, case.gpu, case.precision), case)
    return tuple(cases.values())


def with_unit(figure: Figure) -> str:
    """Write a figure with its unit."""
    return f"{figure.value} {figure.unit}".strip()


def replaced(placeholder: str) -> str:
    """Return what stands for a placeholder.

    Raises:
        KeyError: No result, table or figure has that name.
    """
    if placeholder == "accuracy":
        return accuracy_table(all_cases())
    if placeholder in ("headline", "sources"):
        return sources_table(results(), only_unseen=placeholder == "headline")
    if placeholder == "operations":
        return operations_table(json.loads(MANIFEST.read_text(encoding="utf-8")))
    is_table = placeholder.startswith("table ")
    name, _, rest = placeholder.removeprefix("table ").partition(":")
    rest = rest.strip()
    if name.strip() == "paper":
        return rest
    loaded = result(name.strip())
    if is_table:
        title, *options = (part.strip() for part in rest.split(" | "))
        chosen = dict(option.split(": ", 1) for option in options)
        return table_text(loaded, loaded.table(title), **chosen)
    if rest in ("cases", "date", "command", "commit"):
        value = getattr(loaded, rest)
        return f"{value:,}" if rest == "cases" else str(value)
    return with_unit(loaded.figure(rest))


def table_text(one: Result, table: ResultTable, *, rows: str = "", columns: str = "", caption: str = "yes") -> str:
    """Write a table as Markdown with its caption.

    Args:
        one: The result that has it.
        table: The table.
        rows: Regular expression that the names of rows match; all if empty.
        columns: Headings after those that name the row, separated by commas; all if empty.
        caption: `no` leaves the caption out.
    """
    kept = [row for row in table.rows if re.fullmatch(rows or ".*", table.row_name(row))]
    if not kept:
        names = [table.row_name(row) for row in table.rows]
        raise KeyError(f"{one.name}: no row of {table.title!r} matches {rows!r}; there are {names}.")
    asked = [heading.strip() for heading in columns.split(",")] if columns else list(table.columns[table.names :])
    numbers = [*range(table.names), *(table.columns.index(heading, table.names) for heading in asked)]
    lines = [
        _line(table.columns[number] for number in numbers),
        "|" + "|".join("---" if number < table.names else "---:" for number in numbers) + "|",
        *(_line(row[number] for number in numbers) for row in kept),
    ]
    text = "\n".join(lines)
    return text if caption == "no" else f"{text}\n\n{caption_text(one)}"


def _line(cells: Any) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def caption_text(one: Result) -> str:
    """Describe the run of a result: command, day, number of cases, fitted constants."""
    fitted = f"fitted to these rows: {one.fitted}" if one.fitted else "nothing was fitted to these rows"
    return f"*`{one.command}`, run on {one.date} at {one.commit}; {one.cases:,} cases; {fitted}.*"


def accuracy_table(cases: Sequence[PublishedCase]) -> str:
    """Write the errors by kind of model and generation of GPU, with a verdict.

    A cell has the median over models, GPUs and sources of their median absolute errors: first of sources on which no
    constant was chosen, then, with a star, of the others.
    """
    groups: dict[tuple[str, str], list[PublishedCase]] = defaultdict(list)
    for case in (case for case in cases if case.source not in WITH_LOADER):
        for column, architectures in GENERATIONS.items():
            if case.generation in architectures:
                groups[case.kind, column].append(case)
    lines = [_line(["model", *GENERATIONS]), "|" + "---|" * (len(GENERATIONS) + 1)]
    lines += [
        _line([kind, *(_cell(groups[kind, column]) for column in GENERATIONS)])
        for kind in KINDS
        if any(groups[kind, column] for column in GENERATIONS)
    ]
    return "\n".join(lines)


def _cell(cases: Sequence[PublishedCase]) -> str:
    parts = {"": [case for case in cases if case.split == "held out"]}
    parts["\\*"] = [case for case in cases if case.split == "fitted"]
    return "<br>".join(_verdict(own) + star + f" ({len(own)})" for star, own in parts.items() if own) or "no data"


def _verdict(cases: Sequence[PublishedCase]) -> str:
    error = round(statistics.median(case.absolute_error for case in cases), 2)
    word = "good" if error <= GOOD else "fair" if error <= FAIR else "do not trust"
    return f"{word if len(cases) >= FEW else 'few cases'}, {100 * error:.0f} %"


def sources_table(found: Iterable[Result], *, only_unseen: bool) -> str:
    """Write the errors of each source as a user runs it, worst first.

    Args:
        found: Results.
        only_unseen: Only figures of sources on which no constant was chosen, memory included; otherwise the times of
            all sources, with what was chosen on them.
    """
    rows: list[tuple[float, list[str]]] = []
    for one in found:
        for table in one.tables:
            figure = table.title.partition(": ")[2].removesuffix(", by source")
            is_listed = one.split == "held out" if only_unseen else figure == "time"
            if one.name not in SOURCES or not table.title.endswith(", by source") or not is_listed:
                continue
            _, cases, median, _, bias, inside, width = table.rows[-1]
            last = figure if only_unseen else one.fitted or "nothing"
            cells = [SOURCES[one.name], last, cases, f"{median} %", f"{bias} %", f"{inside} %", width]
            rows.append((-float(median), cells))
    middle = "figure" if only_unseen else "chosen on it"
    lines = [_line(["source", middle, "cases", "median error", "bias", "inside", "width"])]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    return "\n".join([*lines, *(_line(cells) for _, cells in sorted(rows))])


OPERATIONS: Final = {
    "linear/bfloat16": "matrix product, bfloat16",
    "linear/float16": "matrix product, float16",
    "linear/float32": "matrix product, float32",
    "bmm/float32": "batched product, float32",
    "conv2d/float32": "convolution, float32",
    "softmax/float32": "softmax, float32",
    "layer_norm/float32": "layer norm, float32",
    "gelu/float32": "GELU, float32",
    "add/float32": "addition, float32",
}


def operations_table(manifest: dict[str, Any]) -> str:
    """Write a row an operation: its mean error on each GPU, averaged, and the best and the worst GPU."""
    lines = [
        "| operation | GPUs | problems | mean error | best GPU | worst GPU | in the 90 % interval |",
        "|---|" + "---:|" * 6,
    ]
    for key, title in OPERATIONS.items():
        scores = {
            entry["gpu"]: entry["held_out_error"][key]
            for entry in manifest["files"].values()
            if key in entry.get("held_out_error", {}) and entry["gpu"] != "base"
        }
        by_error = sorted(scores, key=lambda gpu: scores[gpu]["mean"])
        problems = sum(score["rows"] for score in scores.values())
        mean = sum(score["mean"] for score in scores.values()) / len(scores)
        inside = sum(score["coverage"] * score["rows"] for score in scores.values()) / problems
        ends = [f"{gpu} {scores[gpu]['mean']:.1%}" for gpu in (by_error[0], by_error[-1])]
        lines.append(f"| {title} | {len(scores)} | {problems:,} | {mean:.1%} | {ends[0]} | {ends[1]} | {inside:.0%} |")
    return "\n".join(lines)


def rendered(template: str) -> str:
    """Return a template with its placeholders replaced."""
    return PLACEHOLDER.sub(lambda match: replaced(match[1]), template)


def pages() -> Iterator[tuple[Path, str]]:
    """Give every generated file and every page with generated blocks, with its content."""
    for template in sorted(TEMPLATES.rglob("*.md")):
        if template.parent != BLOCKS:
            yield ROOT / "docs" / template.relative_to(TEMPLATES), rendered(template.read_text(encoding="utf-8"))
    for page in hand_written_pages():
        text = page.read_text(encoding="utf-8")
        if BLOCK.search(text):
            yield page, BLOCK.sub(_filled, text)
    yield published_cases.FILE, cases_text(all_cases())


def hand_written_pages() -> tuple[Path, ...]:
    """List the README and the pages of `docs` that no template makes whole."""
    docs = (path for path in sorted((ROOT / "docs").rglob("*.md")) if TEMPLATES not in path.parents)
    return (ROOT / "README.md", *(path for path in docs if not (TEMPLATES / path.relative_to(ROOT / "docs")).is_file()))


def _filled(match: re.Match[str]) -> str:
    opening, name, _, end = match.groups()
    return opening + rendered((BLOCKS / f"{name}.md").read_text(encoding="utf-8")) + end


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the generated files, or say which differ; 1 if some do."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.render_docs", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="write nothing; name the files that differ")
    options = parser.parse_args(arguments)
    stale = [(path, text) for path, text in pages() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path, text in stale:
        print(f"{'differs' if options.check else 'written'}: {path.relative_to(ROOT)}")
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
