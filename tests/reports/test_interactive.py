"""The report in Chromium: sorted, filtered and rescaled by its link; readable without scripts."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lightning_predict.reports.html import html_report
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import rank
from tests.reports.example import FULL, MINIMAL, TEN
from tests.reports.test_html import DAY

BROWSER = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


def page(folder: Path, predictions: Predictions, link: str = "", *, scripts: bool = True) -> str:
    """Return the page as the browser has it once its script has run; or with a policy that allows no script."""
    path, document = folder / "report.html", html_report(predictions, rank(predictions), made_on=DAY)
    path.write_text(document if scripts else document.replace("'sha256-", "'sha256-other", 1), encoding="utf-8")
    command = [str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000"]
    ran = subprocess.run(
        [*command, f"--user-data-dir={folder / 'browser'}", "--dump-dom", f"file://{path}{link}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return str(ran.stdout)


def rows(document: str) -> list[list[str]]:
    """Return the texts of the visible rows of the table, in order."""
    (body,) = re.findall(r'<table class="all">.*?<tbody>(.*?)</tbody>', document, re.DOTALL)
    visible = [
        row for head, row in re.findall(r"<tr([^>]*)>(.*?)</tr>", body, re.DOTALL) if "display: none" not in head
    ]
    cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL) for row in visible]
    return [[re.sub(r"<span class=.badge.*", "", cell).replace("<span>", "").strip() for cell in row] for row in cells]


def found(document: str) -> str:
    """Return the script's output about the table."""
    (text,) = re.findall(r'<p class="found" role="status">(.*?)</p>', document)
    return str(text)


AS_MADE = ["T4 (recorded)", "H100-SXM-80GB", "K80 †"]


def test_page_is_as_made_without_scripts_and_with_a_strange_link(tmp_path: Path) -> None:
    document = page(tmp_path, FULL)
    assert [row[0] for row in rows(document)] == AS_MADE
    assert found(document) == (
        "3 of 3 rows. Cheapest: T4 (recorded), 3 h 12 min, $1.12. Fastest: H100-SXM-80GB, 24 min, $1.20."
    )
    document = page(tmp_path, FULL, "#sort=total", scripts=False)
    assert [row[0] for row in rows(document)] == AS_MADE
    assert re.search(r'<form class="controls"[^>]* hidden', document)
    assert found(document) == ""
    document = page(tmp_path, FULL, "#sort=<b>&provider=nobody&memory=x&steps=1e9&price=-5&other=1")
    assert re.match(r"\d of 3 rows\.", found(document))


def test_a_link_sorts(tmp_path: Path) -> None:
    assert [row[0] for row in rows(page(tmp_path, FULL, "#sort=total"))] == ["H100-SXM-80GB", "T4 (recorded)", "K80 †"]
    by_cost = page(tmp_path, FULL, "#sort=cost")
    assert [row[0] for row in rows(by_cost)] == ["T4 (recorded)", "H100-SXM-80GB", "K80 †"]  # unknown comes last
    assert 'aria-sort="ascending"' in by_cost


def test_a_link_filters_by_memory_and_price(tmp_path: Path) -> None:
    assert [row[0] for row in rows(page(tmp_path, FULL, "#memory=80"))] == ["H100-SXM-80GB"]
    cheap = page(tmp_path, FULL, "#price=0")  # the lowest price, $0.35
    assert [row[0] for row in rows(cheap)] == ["T4 (recorded)", "K80 †"]  # a GPU without a price stays
    assert found(cheap).startswith("2 of 3 rows.")


def test_more_steps_cost_more_and_a_deadline_leaves_only_gpus_in_time(tmp_path: Path) -> None:
    document = page(tmp_path, FULL, "#steps=20")  # tenfold
    t4, h100, _ = rows(document)
    assert "4 h" in h100  # 10 × 24 min
    assert "$11.96" in h100
    assert "1 d 8 h" in t4  # 10 × 3 h 12 min
    assert "$11.20" in t4
    assert found(document).endswith("Charts and texts are for 240,000 steps.")
    document = page(tmp_path, FULL, "#deadline=20")  # 0.1 h × 87,600^0.2 = 0.97 h
    assert "Cheapest: H100-SXM-80GB, 24 min, $1.20." in found(document)
    assert document.count('class="used late"') == 1


@pytest.mark.parametrize("predictions", [Predictions((MINIMAL,)), TEN], ids=["minimal", "ten"])
def test_pages_with_little_and_with_much_have_their_controls(predictions: Predictions, tmp_path: Path) -> None:
    document = page(tmp_path, predictions)
    assert found(document).startswith(f"{len(predictions)} of {len(predictions)} rows.")
