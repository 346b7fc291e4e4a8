"""How the base does on GPUs that it never saw, as training measured and the manifest keeps it.

For each GPU, a base that saw neither it nor its like (`Recipe.folds`) predicted the held-out rows that are scored for
own weights. It was trained like the base that ships, or more briefly. Example::

    print(unseen_table(read_manifest(BUNDLED)))
"""

from __future__ import annotations

from rich import box
from rich.table import Table

from lightning_predict.weights.manifest import Manifest, file_name
from lightning_predict.weights.records import BASE

HEADINGS = ("operation", "dtype", "GPU", "rows", "median %", "mean %", "in interval %")


def unseen_cells(manifest: Manifest) -> list[tuple[str, ...]]:
    """Rows of the table, in the order of `HEADINGS`; none where nothing could be left out."""
    entry = manifest.files.get(file_name(BASE))
    found = {} if entry is None else entry.held_out_error
    return [
        (
            *key.split("/"),
            str(error.rows),
            *(f"{100 * share:.1f}" for share in (error.median, error.mean, error.coverage)),
        )
        for key, error in sorted(found.items())
    ]


def unseen_table(manifest: Manifest) -> Table:
    """The errors for the terminal."""
    table = Table(title="Errors of bases on GPUs that were left out of their training", box=box.SIMPLE)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in HEADINGS[:3] else "right", no_wrap=True)
    for cells in unseen_cells(manifest):
        table.add_row(*cells)
    return table


def unseen_markdown(manifest: Manifest) -> str:
    """The errors as a Markdown table."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(cells) + " |" for cells in unseen_cells(manifest)]
    return "\n".join(lines)
