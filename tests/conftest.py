"""Golden files: printed output, kept next to the tests as `golden/<name>`.

A test compares with `golden("name.txt", text)`. After a wanted change of the output, look at it and run `make renew`,
which rewrites the files (`pytest --overwrite-golden` runs only tests that write); the difference is reviewed like code.

Slow tests: the functions of `slow_tests.txt` are marked `slow`, which `make test` leaves out and `make test-all`, like
any plain `pytest`, runs. `pytest --renew-slow` times the tests that run and writes the file.
"""

from __future__ import annotations

import gc
import hashlib
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from lightning_predict.testing import Clock
    from tests.kept import Kept

# One thread for tiny tensors, in every process that tests start, too: more of them wait for each other, and for the
# other test processes, longer than they work. Torch reads it when it is imported, which it is not yet.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No weights of the user who runs the tests, from the first import on; nothing is kept there unless a test asks for it.
os.environ["LIGHTNING_PREDICT_CACHE"] = os.path.join(tempfile.gettempdir(), "lightning-predict-tests-keep-no-weights")

# The day of the outputs in the documentation, which say how old a price is: 2026-11-27.
os.environ["SOURCE_DATE_EPOCH"] = "1795780800"

# Nor fetched prices of the user who runs the tests.
os.environ["LIGHTNING_PREDICT_PRICES"] = os.path.join(tempfile.gettempdir(), "lightning-predict-tests-fetch-no-prices")

# The same examples every time, so that a failure has one cause; speed is for benchmarks.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)  # other examples every time: --hypothesis-profile search
settings.load_profile("steady")


# Packages of `make check` that `make test` does without.
_NEEDED = {
    "callbacks/test_entrances.py": "transformers",
    "integrations/test_trainer_ranks.py": "transformers",
    "integrations/test_transformers.py": "transformers",
}
collect_ignore = [file for file, package in _NEEDED.items() if find_spec(package) is None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--overwrite-golden",
        action="store_true",
        help="write what the tests print to their golden files instead of comparing",
    )
    parser.addoption(
        "--random-files",
        metavar="SEED",
        help="run the test files in the order that a seed draws: what one file leaves must not matter to another",
    )
    parser.addoption(
        "--renew-slow",
        action="store_true",
        help=f"write the functions that took {SLOW_SECONDS} s or more to slow_tests.txt",
    )


SLOW_TESTS: Final = Path(__file__).parent / "slow_tests.txt"
SLOW_SECONDS: Final = 1.5  # of one function, all its parameters together, alone on the machine
_SLOW: Final = frozenset(SLOW_TESTS.read_text(encoding="utf-8").splitlines())
_SECONDS: Final[defaultdict[str, float]] = defaultdict(float)


def _function(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def pytest_itemcollected(item: pytest.Item) -> None:
    if _function(item.nodeid) in _SLOW:
        item.add_marker("slow")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _SECONDS[_function(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what took long, from the process that hears of every test."""
    if session.config.getoption("--renew-slow") and not hasattr(session.config, "workerinput"):
        kept = {name for name in _SLOW if name not in _SECONDS and exists(name)}
        slow = kept | {name for name, seconds in _SECONDS.items() if seconds >= SLOW_SECONDS}
        SLOW_TESTS.write_text("".join(f"{name}\n" for name in sorted(slow)), encoding="utf-8")


def exists(name: str) -> bool:
    """Whether a line of slow_tests.txt names a test function that is there."""
    file, _, function = name.partition("::")
    path = SLOW_TESTS.parent.parent / file
    return path.is_file() and f"def {function.rpartition('::')[2]}(" in path.read_text(encoding="utf-8")


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--random-files")
    return None if seed is None else f"files in random order: --random-files {seed}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files by the seed and their names, alike in every process; to overwrite, run what writes alone."""
    if config.getoption("--overwrite-golden"):
        items[:] = [item for item in items if "overwrites" in getattr(item, "fixturenames", ())]
    seed = config.getoption("--random-files")
    if seed is not None:
        items.sort(key=lambda item: hashlib.sha256(f"{seed} {item.location[0]}".encode()).digest())


def pytest_collection_finish() -> None:
    """Freeze modules and tests, which live to the end: collecting garbage no longer walks through them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _own_garbage() -> Iterator[None]:
    """Collect the reference cycles that a file leaves within its last test: a finalizer that fails fails that one."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _own_gpus() -> Iterator[None]:
    """Forget the GPUs and the rates that a test added: the catalogue is the same in every order of files."""
    from lightning_predict.hardware import lookup  # after the settings above, which the package and torch read

    added, measured = dict(lookup._OWN), dict(lookup._MEASURED)
    yield
    if (added, measured) != (lookup._OWN, lookup._MEASURED):
        lookup._OWN.clear()
        lookup._MEASURED.clear()
        lookup.add_to_catalogue(added.values())
        lookup.set_measured(measured.values())


_HISTORIES: Final = count()


@pytest.fixture(scope="session")
def _histories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: making thousands takes seconds."""
    return tmp_path_factory.mktemp("histories")


@pytest.fixture(autouse=True)
def _own_history(_histories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the history of the user who runs it, or of another test."""
    monkeypatch.setenv("LIGHTNING_PREDICT_HISTORY", str(_histories / f"{next(_HISTORIES)}.jsonl"))


@pytest.fixture(autouse=True)
def _no_silent_translators(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error inside a translator is a bug of ours: in tests it raises, where users get a note."""
    monkeypatch.setenv("LIGHTNING_PREDICT_STRICT", "1")


@pytest.fixture
def overwrites(request: pytest.FixtureRequest) -> bool:
    """Return whether kept values are written instead of compared."""
    return bool(request.config.getoption("--overwrite-golden"))


@pytest.fixture
def golden(request: pytest.FixtureRequest, overwrites: bool) -> Callable[[str, str], None]:
    """Compare a text with the file `golden/<name>` next to the test's module."""

    def compare(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if overwrites:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")
        assert path.exists(), f"{path} is missing; `make renew` writes it."
        assert text + "\n" == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def kept(request: pytest.FixtureRequest, overwrites: bool) -> Kept:
    """Compare numbers with `golden/kept.json` next to the test's module (see `tests/kept.py`)."""
    from tests.kept import kept_at

    path = request.path.parent / "golden" / "kept.json"
    return kept_at(path, overwrites=overwrites)


@pytest.fixture
def time() -> Iterator[Clock]:
    """Return the clock that all callbacks and loops of a test see."""
    from lightning_predict.observe.clock import clock_of_fits
    from lightning_predict.testing import Clock

    shown = Clock()
    with clock_of_fits(shown):
        yield shown
