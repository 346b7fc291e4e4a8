"""The Python blocks of the how-tos and the tutorial: all compile, and all but those named here run as printed."""

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent / "docs"

PAGES = (*sorted((DOCS / "howto").glob("*.md")), DOCS / "tutorial.md")

NOT_RUN = {"hugging-face.md": "takes the reader's own model and dataset; tests/integrations run the callback"}
"""Pages whose blocks are compiled only, and why; pytest shows the reason with `-rs`."""


def blocks_of(page: Path) -> list[tuple[int, str]]:
    """The Python blocks of a page, each with the line that it begins on."""
    text = page.read_text(encoding="utf-8")
    blocks = re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, block.start(1)) + 1, block[1]) for block in blocks]


def compiled(page: Path, line: int, block: str) -> Any:
    """Compile a block so that errors name the page and its line."""
    return compile("\n" * (line - 1) + block, str(page), "exec", dont_inherit=True)


WITH_BLOCKS = [page for page in PAGES if blocks_of(page)]

every_page = pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: page.stem)


def test_all_code_blocks_of_the_pages_are_found() -> None:
    assert len(WITH_BLOCKS) >= 10
    for page in PAGES:
        assert len(blocks_of(page)) == page.read_text(encoding="utf-8").count("```python"), page.name
    assert set(NOT_RUN) <= {page.name for page in WITH_BLOCKS}


@every_page
def test_every_block_compiles(page: Path) -> None:
    for line, block in blocks_of(page):
        compiled(page, line, block)


@every_page
def test_code_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in NOT_RUN:
        pytest.skip(f"{page.name} {NOT_RUN[page.name]}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(DOCS.parent / "examples")
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, block in blocks_of(page):
        exec(compiled(page, line, block), names)
