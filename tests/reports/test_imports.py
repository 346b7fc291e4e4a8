"""Reports are cheap to import and do not import torch or Lightning."""

import subprocess
import sys

HEAVY = ("torch", "lightning", "pytorch_lightning", "rich")
MODULES = ("format", "html", "loggers", "predictions", "ranking", "sky", "table")


def loaded_by(code: str) -> set[str]:
    """Which of the heavy packages a fresh Python has loaded after this code."""
    code += f"\nimport sys; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_reports_load_nothing_heavy_to_import_or_print() -> None:
    assert loaded_by("\n".join(f"import lightning_predict.reports.{module}" for module in MODULES)) == set()
    assert "rich" in loaded_by("import rich")
    assert loaded_by("from tests.reports.example import FULL; str(FULL)") == set()
