"""One meaning a name: no public class, type or function of the package is defined in two modules."""

import ast
from collections import defaultdict
from pathlib import Path

import lightning_predict

PACKAGE = Path(lightning_predict.__file__).parent

SAME_MEANING = {  # Names that two modules define on purpose, in one meaning
    # A type variable stands for its bound type; each module declares its own.
    *("Batch", "Parameters", "Result", "Value", "Default"),
    # A command of the command line, and the function that it calls.
    *("advise", "measure", "predict"),
    # Whether a step trains, from a trace or its work.
    "has_backward",
}


def public_names(source: str) -> set[str]:
    """Classes, functions and types that a module defines; constants, whose names are capitals, aside."""
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_") and not (name.isupper() and len(name) > 1)}


def homes_of(sources: dict[str, str]) -> dict[str, list[str]]:
    """The modules that define each name, where they are several."""
    homes = defaultdict(list)
    for module, source in sources.items():
        for name in public_names(source):
            homes[name].append(module)
    return {name: modules for name, modules in homes.items() if len(modules) > 1 and name not in SAME_MEANING}


def test_no_public_name_has_two_homes() -> None:
    sources = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert homes_of(sources) == {}
    assert homes_of({"a.py": "class Outcome: ...", "b.py": "Outcome = int"}) == {"Outcome": ["a.py", "b.py"]}
