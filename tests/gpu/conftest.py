"""Every test here needs a GPU and is skipped without a GPU; a page says at the end which facts hold."""

from typing import Any, Final

import pytest
import torch

from tests.gpu.page import Fact, Outcome, machine, page, write

_FACTS: Final[dict[str, Fact]] = {}


@pytest.fixture(autouse=True, scope="session")
def _needs_cuda() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device; torch.cuda.is_available() is False here")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep each test's outcome, with its measurements."""
    if "tests/gpu/" not in report.nodeid or (report.when != "call" and report.passed):
        return
    name = report.nodeid.partition("::")[2].removeprefix("test_")
    outcome: Outcome = "holds" if report.passed else "skipped" if report.skipped else "fails"
    if outcome == "skipped":
        where = report.longrepr
        detail = str(where[2]).removeprefix("Skipped: ") if isinstance(where, tuple) else ""
    elif outcome == "fails":
        detail = str(getattr(report.longrepr, "reprcrash", "")).splitlines()[0][-200:] if report.longrepr else ""
    else:
        detail = "; ".join(str(value) for _, value in report.user_properties)
    _FACTS[report.nodeid] = Fact(name.replace("_", " "), outcome, detail)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show the page, and write it as JSON."""
    if not _FACTS:
        return
    described = machine()
    facts = list(_FACTS.values())
    write(facts, described)
    terminalreporter.section("facts")
    for line in page(facts, described):
        terminalreporter.write_line(line)
