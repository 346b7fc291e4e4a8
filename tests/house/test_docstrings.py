"""Docstrings name the fields and arguments that exist: a renaming changes the docstring, too."""

import ast
import doctest
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import lightning_predict

PACKAGE = Path(lightning_predict.__file__).parent


def documented(docstring: str, section: str) -> list[str]:
    """Return the names that a section of a docstring documents."""
    if f"{section}:\n" not in docstring:
        return []
    entries = re.split(r"\n(?=\S)", docstring.split(f"{section}:\n", 1)[1])[0]
    return re.findall(r"^    \*{0,2}(\w+):", entries, re.MULTILINE)


def unknown_names(source: str) -> Iterator[str]:
    """Yield documented names that are no field of the dataclass, or no argument of the function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            fields = {
                statement.target.id
                for statement in node.body
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            }
            fields |= {statement.name for statement in node.body if isinstance(statement, ast.FunctionDef)}
            is_dataclass = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
            for name in documented(ast.get_docstring(node) or "", "Attributes") if is_dataclass else ():
                if name not in fields:
                    yield f"{node.name}.{name}"
        elif isinstance(node, ast.FunctionDef):
            given = node.args
            arguments = {argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
            arguments |= {argument.arg for argument in (given.vararg, given.kwarg) if argument is not None}
            for name in documented(ast.get_docstring(node) or "", "Args"):
                if name not in arguments:
                    yield f"{node.name}({name})"


def test_docstrings_name_what_exists() -> None:
    unknown = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in unknown_names(path.read_text(encoding="utf-8"))
    ]
    assert unknown == []


OF_OTHERS = {"_fsdp_collectives.py", "token_dispatcher.py", "torch/_functorch/partitioners.py"}
"""Files of other projects that the package names."""


def test_docstrings_name_files_that_exist() -> None:
    root = PACKAGE.parent
    folders = (root / name for name in (PACKAGE.name, "benchmarks", "examples", "tests"))
    parts = [path.relative_to(root).parts for folder in folders for path in folder.rglob("*.py")]
    ours = {"/".join(path[-length:]) for path in parts for length in range(1, len(path) + 1)}
    named = {
        (str(path.relative_to(PACKAGE)), name)
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"`((?:\w+/)*\w+\.py)`", path.read_text(encoding="utf-8"))
    }
    assert {(path, name) for path, name in named if name not in ours | OF_OTHERS} == set()


@pytest.mark.parametrize("path", [path for path in sorted(PACKAGE.rglob("*.py")) if ">>>" in path.read_text("utf-8")])
def test_examples_show_what_their_code_returns(path: Path) -> None:
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    assert doctest.testmod(import_module(name)).failed == 0


def test_an_old_name_is_noticed() -> None:
    source = '''
@dataclass
class Storage:
    """A storage.

    Attributes:
        birth: When it is created.
    """

    allocated_at: int


def freed(storage):
    """Return whether a storage is freed.

    Args:
        one: The storage.
    """
'''
    assert list(unknown_names(source)) == ["Storage.birth", "freed(one)"]
