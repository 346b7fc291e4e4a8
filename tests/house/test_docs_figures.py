"""Figures of accuracy in the documentation come from results files, and pages from their templates."""

import ast
import gzip
import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from benchmarks import render_docs
from benchmarks.render_docs import (
    BLOCK,
    BLOCKS,
    PLACEHOLDER,
    TEMPLATES,
    accuracy_table,
    hand_written_pages,
    pages,
    rendered,
    replaced,
    table_text,
)
from benchmarks.result_files import FOLDER, Result, ResultTable, read_result
from benchmarks.runs import SOURCES
from lightning_predict.reports.published_cases import FILE, PublishedCase, read_published_cases

ROOT = Path(__file__).parents[2]
TEMPLATE_FILES = sorted(TEMPLATES.rglob("*.md"))
RESULTS = sorted(path.stem for path in FOLDER.glob("*.json"))

WORDS_OF_THE_PAGE = 600
WORDS_OF_THE_OTHERS = 1800
WORDS_OF_ANY_PAGE = 1500
BYTES_OF_THE_CASES = 100_000

DEFINED = ("90 %", "15 %", "10 %", "20 %", "5 ms")
"""Figures that define something: the interval, the held-out problems, the verdicts, the shortest pause that is seen."""

RULES = {  # By page, percentages of rules, thresholds and examples, and a publication's own, which no command measures
    "README.md": {"80 %"},
    "docs/howto/budget.md": {"80 %", "100 %", "5 %"},
    "docs/howto/questions.md": {"80 %"},
    "docs/tutorial.md": {"80 %"},
    "docs/reliability.md": {"5 %"},
    "docs/howto/first-hour.md": {"5 %", "10 %", "15 %", "25 %", "-6 and +2 %"},
    "docs/howto/memory.md": {"90 %"},
    "docs/howto/no-gpu.md": {"5 %"},
    "docs/howto/plan-jobs.md": {"0.5 %", "5 %"},
    "docs/methods/savings.md": {"94 %"},
    "docs/howto/advice.md": {"2 to 7 %"},
    "docs/comparison.md": {"1 to 6 %", "21 to 41 %", "5.4 %"},  # as the tools' own pages state
}

FIGURE = re.compile(r"\d[\d,.]*(?: ?%| (?:ms|s|points|GiB|times as)\b)|(?<!\S)[-+]\d[\d,.]*\b")


def prose(text: str) -> str:
    """A page without code, tables and their captions, placeholders, comments and targets of links."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "*`python -m"))]
    text = PLACEHOLDER.sub("", "\n".join(lines))
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)


def figures_typed(text: str) -> list[str]:
    """Figures of a template outside of placeholders and code, table cells included."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", PLACEHOLDER.sub("", text))
    return [figure for figure in FIGURE.findall(text) if figure not in DEFINED]


@pytest.mark.parametrize(("path", "text"), list(pages()), ids=lambda value: getattr(value, "name", ""))
def test_a_page_is_what_its_template_gives(path: Path, text: str) -> None:
    assert path.read_text(encoding="utf-8") == text, f"{path.relative_to(ROOT)} is stale: run `make docs`"


@pytest.mark.parametrize("path", TEMPLATE_FILES, ids=lambda path: str(path.relative_to(TEMPLATES)))
def test_no_figure_is_typed(path: Path) -> None:
    assert figures_typed(path.read_text(encoding="utf-8")) == []


def test_typed_figures_are_found_and_quoted_ones_are_not() -> None:
    assert figures_typed("errs by 7.4 % and takes 12 ms, 1.5 times as long, bias -3.2") == [
        "7.4 %",
        "12 ms",
        "1.5 times as",
        "-3.2",
    ]
    assert figures_typed("| T4 | 5.1 % |") == ["5.1 %"]
    assert figures_typed("`--sample 40 %` errs by {{lin: steps / all / median %}}, in the 90 % interval, GPT-2") == []


def percentages_typed(text: str) -> list[str]:
    """Percentages of a hand-written page outside of its generated blocks and code."""
    text = BLOCK.sub("", text)
    text = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    return re.findall(r"[-+]?\d[\d.,]*(?: (?:to|and|or) [-+]?\d[\d.,]*)* %", text)


@pytest.mark.parametrize("path", hand_written_pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_hand_written_page_types_no_accuracy(path: Path) -> None:
    """A percentage is generated, or a rule of the program or a publication's own figure that `RULES` lists."""
    allowed = RULES.get(str(path.relative_to(ROOT)), frozenset()) | {"90 %"}
    assert set(percentages_typed(path.read_text(encoding="utf-8"))) <= allowed


def test_pages_are_short_rendered_and_use_existing_blocks() -> None:
    assert len(prose((ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")).split()) <= WORDS_OF_THE_PAGE
    others = [prose(path.read_text(encoding="utf-8")) for path in (ROOT / "docs" / "accuracy").glob("*.md")]
    assert sum(len(text.split()) for text in others) <= WORDS_OF_THE_OTHERS
    pages = [path for path in (ROOT / "docs").rglob("*.md") if TEMPLATES not in path.parents]
    words = {path.name: len(prose(path.read_text(encoding="utf-8")).split()) for path in pages}
    assert {name: count for name, count in words.items() if count > WORDS_OF_ANY_PAGE} == {}
    assert len(words) > 30
    docs = ROOT / "docs"
    accuracy = [*docs.glob("accuracy*.md"), *(docs / "accuracy").rglob("*.md"), docs / "many_gpus.md"]
    assert {path.relative_to(docs) for path in accuracy} == {
        path.relative_to(TEMPLATES) for path in TEMPLATE_FILES if path.parent != BLOCKS
    }
    used = {match[2] for path in hand_written_pages() for match in BLOCK.finditer(path.read_text(encoding="utf-8"))}
    assert used == {path.stem for path in BLOCKS.glob("*.md")}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_says_how_it_came_about(name: str) -> None:
    one = read_result(name)
    assert one.name == name
    assert date(2026, 11, 1) <= date.fromisoformat(one.date) <= date.today()
    assert one.command.startswith("python -m benchmarks.")
    assert re.fullmatch(r"[0-9a-f]{7,40}", one.commit)
    assert one.cases > 0
    assert one.tables or one.figures


def release_days() -> list[date]:
    """Days of the releases in CHANGELOG.md, newest first."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return [date.fromisoformat(day) for day in re.findall(r"^## \[\d[^\]]*\] - (\d{4}-\d\d-\d\d)", text, re.MULTILINE)]


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_of_the_last_release_or_newer(name: str) -> None:
    days = release_days()
    oldest = days[1] if len(days) > 1 else date(2026, 11, 1)
    assert date.fromisoformat(read_result(name).date) >= oldest, f"run `make results ONLY={name}` again"


def test_release_days_are_read_from_the_changelog(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "## [Unreleased]\n\n## [0.2.0] - 2027-02-01\n\n## [0.1.0] - 2027-01-01\n"
    (tmp_path / "CHANGELOG.md").write_text(text, encoding="utf-8")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert release_days() == [date(2027, 2, 1), date(2027, 1, 1)]


PLANNERS = ("benchmarks.planning", "benchmarks.planning.optimum", "benchmarks.planning.promises")
"""Commands that compare planners with each other. No prediction of a step is scored."""

PUBLIC = {  # Modules of the package that the documentation tells users to import
    "lightning_predict",
    "lightning_predict.callbacks",
    "lightning_predict.cli",
    "lightning_predict.advice.what_if",  # docs/howto/what-if.md
    "lightning_predict.kernels.interconnect",  # docs/howto/several-gpus.md
}


def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports, those for types included."""
    modules = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            modules.add(node.module)
    return {name for name in modules if name.partition(".")[0] == "lightning_predict"}


def quoted() -> set[str]:
    """Results that a page quotes."""
    texts = [path.read_text(encoding="utf-8") for path in TEMPLATE_FILES]
    placeholders = [match for text in texts for match in PLACEHOLDER.findall(text)]
    names = {match.removeprefix("table ").partition(":")[0].strip() for match in placeholders if ":" in match}
    return names - {"paper"}


@pytest.mark.parametrize("name", sorted(quoted()))
def test_a_page_quotes_only_figures_of_the_public_interface(name: str) -> None:
    module = read_result(name).command.split()[2]
    assert module in PLANNERS or module.startswith("benchmarks.accuracy"), f"{name} is scored by {module}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks" / "accuracy").rglob("*.py")), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_accuracy_is_scored_through_the_public_interface(path: Path) -> None:
    assert imported(path) <= PUBLIC


def test_the_cases_of_the_wheel_are_small_and_of_known_gpus() -> None:
    assert len(gzip.compress(FILE.read_bytes())) <= BYTES_OF_THE_CASES
    cases = read_published_cases()
    assert all(case.generation and 0 <= case.inside <= case.steps for case in cases)
    assert {case.split for case in cases} == {"held out", "fitted"}


def result(monkeypatch: pytest.MonkeyPatch) -> Result:
    table = ResultTable(
        title="Errors",
        columns=("GPU", "n", "median %"),
        names=1,
        rows=(("T4", "12", "3.4"), ("L4", "3", "5.0"), ("all", "15", "4.1")),
    )
    made = Result(
        name="made",
        command="python -m benchmarks.made",
        date="2026-11-27",
        commit="0123456",
        split="fitted",
        fitted="a constant",
        cases=1015,
        tables=(table,),
    )
    monkeypatch.setattr(render_docs, "result", {"made": made}.__getitem__)
    return made


def test_placeholders_give_figures_and_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    result(monkeypatch)
    assert rendered("{{made: Errors / all / median %}} of {{ made: cases }} on {{made: date}}") == (
        "4.1 % of 1,015 on 2026-11-27"
    )
    assert rendered("theirs: {{paper: 11.8 %}}") == "theirs: 11.8 %"
    with pytest.raises(KeyError):
        replaced("made: Errors / H100 / median %")
    with pytest.raises(KeyError):
        replaced("other: cases")


def test_a_table_has_chosen_rows_and_columns_and_its_caption(monkeypatch: pytest.MonkeyPatch) -> None:
    made = result(monkeypatch)
    lines = replaced("table made: Errors | rows: T4|all | columns: median %").splitlines()
    assert lines[:4] == ["| GPU | median % |", "|---|---:|", "| T4 | 3.4 |", "| all | 4.1 |"]
    assert lines[-1] == (
        "*`python -m benchmarks.made`, run on 2026-11-27 at 0123456; 1,015 cases; fitted to these rows: a constant.*"
    )
    with pytest.raises(KeyError, match="no row"):
        table_text(made, made.tables[0], rows="H100")


def test_held_out_sources_stand_before_those_that_constants_were_chosen_on() -> None:
    def case(error: float, split: str, gpu: str = "L40S") -> PublishedCase:
        return PublishedCase(
            model="a model",
            kind="vision transformer",
            gpu=gpu,
            precision="16 bits",
            source="a page",
            split="held out" if split == "held out" else "fitted",
            steps=1,
            error=error,
            absolute_error=error,
            inside=1,
        )

    def row(*cases: PublishedCase) -> list[str]:
        lines = [line for line in accuracy_table(cases).splitlines() if line.startswith("| vision transformer")]
        return [cell.strip() for cell in lines[0].split("|")[1:-1]]

    # The columns after the kind: up to Volta, Turing, Ampere, Ada, Hopper, Blackwell.
    fitted = [case(0.05, "fitted")] * 3
    held_out = [case(0.3, "held out")] * 3
    assert row(*fitted)[4] == "good, 5 %\\* (3)"
    assert row(*fitted, *held_out)[4] == "do not trust, 30 % (3)<br>good, 5 %\\* (3)"
    assert row(*fitted, *held_out[:1])[4] == "few cases, 30 % (1)<br>good, 5 %\\* (3)"
    assert row(case(0.15, "held out", "2x8xH100-SXM-80GB"))[4:6] == ["no data", "few cases, 15 % (1)"]
    with_loader = [replace(entry, source=SOURCES["sia"]) for entry in held_out]
    assert row(*fitted, *with_loader) == row(*fitted)
