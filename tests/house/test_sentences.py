"""Messages to users: plain words, short sentences, and at most three notes below a default table.

The phrases of `discouraged_phrases.txt` are counted in messages, docstrings, comments and the documentation; in
benchmarks, examples and tests, only in docstrings and comments, and in the names of tests.
`pytest -s` prints the rates of each folder.
"""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import lightning_predict as lp
from lightning_predict.advice.advice_text import short_lines
from lightning_predict.base.interval import Interval
from lightning_predict.callbacks.output import table_text
from lightning_predict.observe.budget import check_forecast, check_use
from lightning_predict.observe.meters import Meter
from lightning_predict.reports.format import FEW, usd
from lightning_predict.reports.ranking import lines_of_run

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "lightning_predict"
OTHER_CODE: Final = tuple(ROOT / name for name in ("benchmarks", "examples", "tests"))
EXAMPLES: Final = sorted(path.name.removesuffix(".json.gz") for path in (ROOT / "examples").glob("*.json.gz"))

PHRASES: Final = [
    re.compile(line, re.IGNORECASE)
    for line in (Path(__file__).parent / "discouraged_phrases.txt").read_text(encoding="utf-8").splitlines()
]
MOST_PER_1000: Final = 2.0  # Maximum number of discouraged phrases per 1,000 words
WORDS_OF_A_MESSAGE: Final = 4  # Minimum number of words for a string to count as a message, not as a name
MOST_WORDS: Final = 25  # Maximum number of words of a sentence in default output


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the strings that stand alone: docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def messages(tree: ast.Module) -> Iterator[str]:
    """Yield all other strings of at least four words, with `{}` for each field of an f-string."""
    left_out = {id(docstring) for docstring in docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            text = node.value
        else:
            continue
        if len(re.findall(r"[A-Za-z][\w'-]*", text)) >= WORDS_OF_A_MESSAGE:
            yield text


@cache
def texts_by_kind() -> dict[str, dict[str, list[str]]]:
    """Collect the texts of Python files by kind and folder, and the documentation by folder."""
    texts: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(file for root in (PACKAGE, *OTHER_CODE) for file in root.rglob("*.py")):
        source, folder = path.read_text(encoding="utf-8"), str(path.parent.relative_to(ROOT))
        tree = ast.parse(source)
        if path.is_relative_to(PACKAGE):
            texts["messages"][folder] += messages(tree)
        texts["docstrings"][folder] += [str(docstring.value) for docstring in docstrings(tree)]
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        texts["function names"][folder] += [name.replace("_", " ") for name in names]
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        texts["comments"][folder] += [token.string for token in tokens if token.type == tokenize.COMMENT]
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))):
        texts["documentation"][str(path.parent.relative_to(ROOT))].append(path.read_text(encoding="utf-8"))
    return texts


def counted(texts: Iterable[str]) -> tuple[int, int]:
    """Count discouraged phrases and words."""
    listed = list(texts)
    hits = sum(len(phrase.findall(text)) for text in listed for phrase in PHRASES)
    return hits, sum(len(text.split()) for text in listed)


PARTS: Final = (
    ("messages", "lightning_predict"),
    *((kind, root) for kind in ("docstrings", "comments") for root in ("lightning_predict", "benchmarks", "tests")),
    ("function names", "tests"),
    ("documentation", ""),
)


@pytest.mark.parametrize(("kind", "root"), PARTS)
def test_discouraged_phrases_are_rare(kind: str, root: str) -> None:
    by_folder = {folder: counted(texts) for folder, texts in texts_by_kind()[kind].items() if folder.startswith(root)}
    print(f"\n{kind}: discouraged phrases per 1,000 words")
    for folder, (hits, words) in by_folder.items():
        print(f"  {1000 * hits / max(words, 1):5.1f}  {folder} ({hits} in {words:,} words)")
    hits, words = (sum(column) for column in zip(*by_folder.values(), strict=True))
    assert words > 500
    assert 1000 * hits / words <= MOST_PER_1000


def test_phrases_are_found_in_messages_only_where_they_are() -> None:
    tree = ast.parse('"""What is this, and nobody knows?"""\nx = f"what is {y} of whom nobody knows"\nz = "nobody"\n')
    assert list(messages(tree)) == ["what is {} of whom nobody knows"]
    assert counted(messages(tree)) == (3, 7)


def sentences(texts: Iterable[str]) -> Iterator[str]:
    """Split notes into sentences."""
    for text in texts:
        yield from re.split(r"(?<=[.!?])\s+(?=[A-Z†?≤`])", text)


def notes_below(table: str) -> list[str]:
    """Return the notes below a printed table, unwrapped, without the line that names `verbose`."""
    below = re.sub(r"\n  +(?=\S)", " ", table.rstrip().rpartition("\n\n")[2]).splitlines()
    return [line for line in below if not line.startswith("verbose adds ")]


def assert_short(texts: Iterable[str]) -> None:
    long = [sentence for sentence in sentences(texts) if len(sentence.split()) > MOST_WORDS]
    assert not long


def unwrapped(lines: Iterable[str]) -> list[str]:
    """Join wrapped lines."""
    return re.sub(r"\n  +(?=\S)", " ", "\n".join(lines)).splitlines()


@pytest.mark.parametrize("iterations", [None, 50_000])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_table_has_three_notes_of_short_sentences(name: str, iterations: int | None) -> None:
    found = lp.predict(lp.Trace.load(str(ROOT / "examples" / f"{name}.json.gz")), iterations=iterations, history=False)
    ranking = found.ranking(deadline_hours=8.0)
    for table in (str(found), table_text(found)):
        notes = notes_below(table)
        assert 1 <= len(notes) <= FEW
        assert_short(notes)
    full = notes_below(found.shown().text(verbose=True))
    assert len(full) > FEW
    unfolded = [one for one in notes_below(str(found)) if "would not be faster" not in one]  # it is about left-out rows
    assert set(unfolded) <= set(full)
    assert_short(unwrapped(str(ranking).splitlines()))
    assert_short(unwrapped(lines_of_run(ranking, when="RuntimePredictor, after 16 steps: ", news="News.")))


@pytest.mark.parametrize("name", ["gpt2", "resnet", "vit"])
def test_advice_has_three_notes_of_short_sentences(name: str) -> None:
    trace = lp.Trace.load(str(ROOT / "examples" / f"{name}.json.gz"))
    advice = lp.advise(trace, ["L4", "A100-SXM-80GB"], iterations=50_000)
    heads = ("Slower here", "Worth testing", "Similar gain", "Gain within", "Not applicable", "Evidence")
    lines = unwrapped(str(advice).splitlines())
    notes = [line for line in lines if line.startswith(heads)]
    assert 1 <= len(notes) <= FEW
    assert_short(notes)
    full = [line for line in unwrapped(advice.text(verbose=True).splitlines()) if line.startswith(heads)]
    assert len(full) >= len(notes)
    assert sum(map(len, full)) > sum(map(len, notes))
    assert len(short_lines(advice)) <= 3
    assert_short(short_lines(advice))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_budget_says_its_reason_in_short_sentences(name: str) -> None:
    predictions = lp.predict(
        lp.Trace.load(str(ROOT / "examples" / f"{name}.json.gz")), ["L4"], iterations=50_000, history=False
    )
    total = predictions["L4"].total
    assert total is not None
    limit = Meter(name="usd", limit=1.0, rate=1.0, words=usd)
    stopped = check_forecast([limit], 120.0, total, steps=15)
    assert stopped.action == "stop"
    warned = check_forecast([limit], 0.0, Interval(0.5, total.middle, total.high), steps=1)
    used = check_use([limit], 120.0)
    assert_short(f"CostBudget ends this run: {decision.reason}." for decision in (stopped, warned, used))
