from io import StringIO

from rich.console import Console

from lightning_predict.planning.plan_table import plan_table
from tests.planning.example import PLAN


def test_table_has_a_row_per_job_and_totals() -> None:
    console = Console(file=StringIO(), width=160)
    console.print(plan_table(PLAN))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "node 0: 4 GPUs of large" in text
    assert "node 1: 1 GPUs of small" in text
    (footer,) = (line for line in text.splitlines() if "│ all " in line)
    assert footer.split() == ["│", "all", "│", "│", "│", "2.00", "│", "│", "│", "8.00", "│", "0.00", "│"]
