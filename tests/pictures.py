"""Make the pictures of the documentation from the examples: `python -m tests.pictures`.

The report and TensorBoard's page are photographed by Chromium (`chromium`, or what CHROMIUM names), the terminal is
drawn by rich. What each shows is known as text without a browser: `docs/pictures.json` keeps a hash of the text that
each picture was made of, and `tests/house/test_pictures.py` compares.
"""

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from html import unescape
from io import StringIO
from pathlib import Path
from typing import Final

from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console

import lightning_predict as lp
from lightning_predict.reports.html import html_report
from lightning_predict.reports.loggers import (
    RANKING_KEY,
    TENSORBOARD_WIDTH,
    log_predictions,
    log_text,
    metrics,
    selected_gpus,
)
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import ranking_lines, ranking_markdown
from lightning_predict.reports.table import markdown_table, print_table

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = ROOT / "docs"
MADE_OF: Final = DOCS / "pictures.json"
STEPS: Final = 50_000
DEADLINE_HOURS: Final = 8.0
_AGES: Final = re.compile(r"Prices older than 180 days.*?\.(?= |\n|$)|, price \d+ (days|months)\s+old", re.DOTALL)
"""The note on old prices, and the ages of prices, which grow as time goes by."""


def example() -> Predictions:
    """Predict the step of GPT-2 that lies among the examples."""
    return lp.predict(lp.Trace.load(str(ROOT / "examples" / "gpt2.json.gz")), iterations=STEPS, history=False)


def report(found: Predictions) -> str:
    """Write the page of the report."""
    return html_report(found, found.ranking(deadline_hours=DEADLINE_HOURS))


def terminal(found: Predictions) -> Console:
    """Print the output of a terminal with 120 columns, and keep it."""
    console = Console(record=True, width=120, file=StringIO(), force_terminal=True)
    print_table(found, console)
    console.print()
    console.print("\n".join(ranking_lines(found.ranking(deadline_hours=DEADLINE_HOURS))), highlight=False)
    return console


def texts(found: Predictions) -> dict[str, str]:
    """Give the text of each picture."""
    page = re.sub(r"<(style|script)>.*?</\1>", "", report(found), flags=re.DOTALL)
    shown = " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())
    ranking = found.ranking(deadline_hours=DEADLINE_HOURS)
    logged = metrics(found, gpus=selected_gpus(ranking, found))
    tensorboard = [
        ranking_markdown(ranking),
        markdown_table(found, verbose=False, width=TENSORBOARD_WIDTH),
        # Six digits: processors round sums in different ways.
        json.dumps({name: f"{value:.6g}" for name, value in logged.items()}),
    ]
    return {
        "report.png": re.sub(r"\. \d+ [A-Z][a-z]+ \d{4}\.", ".", shown, count=1),  # the day that it was made on
        "terminal.svg": terminal(found).export_text(clear=False),
        "tensorboard.png": "\n\n".join(tensorboard),
    }


def hashes(found: Predictions) -> dict[str, str]:
    """Give a hash of the text of each picture, without dates."""
    plain = {name: " ".join(_AGES.sub("", " ".join(text.split())).split()) for name, text in texts(found).items()}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in plain.items()}


def photograph(address: str, file: Path, *, width: int, height: int, wait_ms: int = 2000, dark: bool = False) -> None:
    """Photograph a page."""
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("No Chromium is installed; install one, or name it with CHROMIUM=/path.")
    command = [
        *(browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--screenshot={file}"),
        *(f"--window-size={width},{height}", f"--virtual-time-budget={wait_ms}", "--force-color-profile=srgb"),
        *(["--blink-settings=preferredColorScheme=0"] if dark else []),
        address,
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=180)


def photograph_tensorboard(found: Predictions, file: Path, *, page: str = "text", dark: bool = False) -> None:
    """Log as a Trainer's callback does, start TensorBoard, and photograph one of its pages."""
    with tempfile.TemporaryDirectory() as folder:
        logger = TensorBoardLogger(folder, name="gpt2", version="run")
        ranking = found.ranking(deadline_hours=DEADLINE_HOURS)
        log_predictions([logger], found, step=16, gpus=selected_gpus(ranking, found))
        log_text([logger], RANKING_KEY, ranking_markdown(ranking), step=16)
        logger.finalize("success")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "tensorboard.main",
            "--logdir",
            folder,
            "--port",
            str(port),
            "--load_fast=false",
        ]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in range(120):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/runs", timeout=5) as answer:
                        if b"run" in answer.read():
                            break
                except OSError:
                    pass
                time.sleep(1)
            photograph(f"http://127.0.0.1:{port}/#{page}", file, width=1280, height=1000, wait_ms=20_000, dark=dark)
        finally:
            server.terminate()
            server.wait(30)


def main() -> None:
    """Make all pictures, and note what each is made of."""
    found = example()
    (DOCS / "terminal.svg").write_text(terminal(found).export_svg(title="lightning-predict predict"), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        page.write_text(report(found), encoding="utf-8")
        photograph(page.as_uri(), DOCS / "report.png", width=1280, height=1500)
    photograph_tensorboard(found, DOCS / "tensorboard.png")
    MADE_OF.write_text(json.dumps(hashes(found), indent=2) + "\n", encoding="utf-8")
    print(*hashes(found), sep="\n")


if __name__ == "__main__":
    main()
