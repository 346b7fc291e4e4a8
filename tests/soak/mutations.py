"""Change the code at one place at a time and see whether its tests notice: `python -m tests.soak.mutations`.

A random sample of places in the folders where predictions are made, as many of each: a comparison, an operator, a
constant, a condition, `min` for `max`. Its tests are the tests of its subject that import the module, or all tests of
the subject, and the numbers that are kept of it (`test_kept.py`), without slow ones: tests elsewhere may notice more,
so that the share of survivors is an upper bound. Files run one after another, those that name the module and the
smallest first, up to the first that fails; tests beyond a limit are left out of processor time without a change. Each
runs in a fork of one process that has imported torch already, without recordings. A change with which a file needs
three times as long counts as noticed.

    python -m tests.soak.mutations --sample 40 --seed 0
"""

import argparse
import ast
import importlib.abc
import importlib.util
import math
import os
import random
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SUBJECTS: Final = ("kernels", "timeline", "cost", "run", "layouts", "memory", "observe", "hardware")

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
}
_CALLS: Final = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One change: the module's path from the root, the line, a description, and the whole module, changed."""

    path: str
    line: int
    words: str
    code: str

    @property
    def module(self) -> str:
        """Name of the module."""
        return self.path.removesuffix(".py").replace("/", ".")


def mutants(path: Path) -> Iterator[Callable[[], Mutant]]:
    """Yield every change of a module, made when it is called."""
    source = path.read_text(encoding="utf-8")
    count = sum(1 for _ in _changes(ast.parse(source)))
    for index in range(count):

        def make(index: int = index) -> Mutant:
            tree = ast.parse(source)
            node, change = list(_changes(tree))[index]
            before = ast.unparse(node)
            setattr(*change)
            after = ast.unparse(node)
            words = f"{before} -> {after if after != before else 'not so'}"
            return Mutant(str(path.relative_to(ROOT)), node.lineno, words, ast.unparse(tree))

        yield make


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr, tuple[ast.AST, str, object]]]:
    """Yield each node that can be changed, with the node, the field and the value of the change."""
    left = {id(inner) for node in ast.walk(tree) for part in _without_behaviour(node) for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in left:
            continue
        match node:
            case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
                yield node, (node, "ops", [_COMPARISONS[type(op)]()])
            case ast.BinOp(op=op, left=first) if type(op) in _OPERATORS and not _is_text(first):
                yield node, (node, "op", _OPERATORS[type(op)]())
            case ast.BoolOp(op=op):
                yield node, (node, "op", ast.Or() if isinstance(op, ast.And) else ast.And())
            case ast.Constant(value=bool() as value):
                yield node, (node, "value", not value)
            case ast.Constant(value=int() | float() as value):
                yield node, (node, "value", value + 1 if isinstance(value, int) else value * 1.5 or 1.0)
            case ast.Call(func=ast.Name(id=name) as called) if name in _CALLS:
                yield node, (called, "id", _CALLS[name])
            case ast.Call(func=ast.Attribute(attr=name) as used) if name in _CALLS:
                yield node, (used, "attr", _CALLS[name])
            case ast.IfExp(test=test) | ast.If(test=test):
                yield test, (node, "test", ast.UnaryOp(ast.Not(), test))
            case _:
                pass


def _without_behaviour(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that no test need notice: annotations, decorators, `zip`'s check."""
    yield from (part for name in ("annotation", "returns") if (part := getattr(node, name, None)) is not None)
    yield from getattr(node, "decorator_list", ())
    if isinstance(node, ast.keyword) and node.arg == "strict":
        yield node


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def tests_of(path: str) -> list[str]:
    """Find the tests of a module's subject that import the module, else all; tests that name it come first."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = module.rpartition(".")
    own, imports = f"test_{name}", (f"from {module} import", f"from {package} import {name}\n")
    subject = path.split("/")[1]
    texts = {file: file.read_text(encoding="utf-8") for file in ROOT.glob(f"tests/{subject}/test_*.py")}
    files = [file for file, text in texts.items() if file.stem == own or any(imported in text for imported in imports)]
    files = sorted(files or texts, key=lambda file: (file.stem != own, name not in texts[file], len(texts[file])))
    files = [*files, *(file for file in texts if file.stem == "test_kept" and file not in files)]
    return [str(file.relative_to(ROOT)) for file in files]


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the changed module in place of the one on disk."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._mutant.module:
            return None
        return importlib.util.spec_from_file_location(name, ROOT / self._mutant.path, loader=self)

    def get_source(self, fullname: str) -> str:
        return self._mutant.code

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._mutant.code, self._mutant.path, "exec")


def ran(mutant: Mutant | None, file: str, *, seconds: float) -> tuple[bool, float]:
    """Run a test file in a fork, with the change; whether every test passed, and the processor time.

    It fails if its processor time is up. What waits forever uses none of it: ten times as long by the clock ends that,
    even with other programs running.
    """
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds)))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        sys.dont_write_bytecode = True
        warnings.simplefilter("ignore")
        if mutant is not None:
            sys.meta_path.insert(0, _Changed(mutant))
        code = 99
        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not gpu and not slow"]
        try:
            code = int(pytest.main([*options, "-W", "ignore::pytest.PytestAssertRewriteWarning", file]))
        finally:
            os._exit(code)
    end = time.monotonic() + 10 * seconds
    while time.monotonic() < end:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            # No tests are collected if all of them are slow.
            passed = os.waitstatus_to_exitcode(status) in (0, pytest.ExitCode.NO_TESTS_COLLECTED)
            return passed, used.ru_utime + used.ru_stime
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False, seconds


LONGER: Final = 3.0  # Times as long as without a change a file may take; a slower change is noticed by the timeout


def is_noticed(mutant: Mutant, seconds: float, unchanged: dict[str, tuple[bool, float]]) -> bool:
    """Run the tests of a change until one fails.

    Args:
        mutant: The change.
        seconds: Processor time that the tests may take without the change.
        unchanged: Results of test files without a change, which are added at their first use.

    Raises:
        SystemExit: No test file passes, and in time, without the change.
    """
    left, has_run = seconds, False
    for file in tests_of(mutant.path):
        if file not in unchanged:
            unchanged[file] = ran(None, file, seconds=seconds)
        passed, plain_seconds = unchanged[file]
        if passed and plain_seconds <= left:
            left, has_run = left - plain_seconds, True
            if not ran(mutant, file, seconds=LONGER * plain_seconds + 5)[0]:
                return True
    if not has_run:
        raise SystemExit(f"The tests of {mutant.path} fail, or take longer, without a change; nothing can be told.")
    return False


def sampled(subject: str, sample: int, seed: int) -> list[Mutant]:
    """Draw changes of a subject's modules that have tests."""
    draw = random.Random(f"{seed} {subject}")
    paths = sorted((ROOT / "lightning_predict" / subject).glob("**/*.py"))
    every = [make for path in paths for make in mutants(path) if path.name != "__init__.py"]
    return [make() for make in draw.sample(every, min(sample, len(every)))]


def main() -> None:
    """Print the table and the survivors."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=int, default=50, help="changes of each subject")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--subjects", default=",".join(SUBJECTS))
    parser.add_argument("--seconds", type=float, default=60, help="processor time of the tests of one change")
    parser.add_argument("--only", default="", help="changes whose place (path:line) holds this only")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ.setdefault("LIGHTNING_PREDICT_RECORDINGS", os.devnull)
    importlib.import_module("lightning.pytorch")  # once, for all forks

    unchanged: dict[str, tuple[bool, float]] = {}
    rows, survivors = [], []
    for subject in options.subjects.split(","):
        drawn = [
            one for one in sampled(subject, options.sample, options.seed) if options.only in f"{one.path}:{one.line}"
        ]
        alive = 0
        for mutant in drawn:
            words = f"{mutant.path}:{mutant.line}: {mutant.words}"
            noticed = is_noticed(mutant, options.seconds, unchanged)
            print("noticed" if noticed else "ALIVE", words, file=sys.stderr, flush=True)
            if not noticed:
                alive += 1
                survivors.append(words)
        rows.append(f"| `{subject}` | {len(drawn)} | {alive} | {alive / max(len(drawn), 1):.0%} |")
    left_out = sorted(file for file, (passed, _) in unchanged.items() if not passed)
    print(f"seed {options.seed}, {options.sample} changes of each subject\n")
    print("| subject | changes | survived | share |\n|---|---:|---:|---:|", *rows, "", *survivors, sep="\n")
    if left_out:
        print(f"\nLeft out, as they fail or take longer than {options.seconds:g} s without a change:", *left_out)


if __name__ == "__main__":
    main()
