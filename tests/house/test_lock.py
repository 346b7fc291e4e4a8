"""The versions that the checks install come from `constraints.txt`, each with the hashes of its files."""

import re
import sys
from pathlib import Path

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
WITHOUT_HASH = {"torch"}
"""Its CPU builds come from another index, which serves other files under the same version."""


def normal(name: str) -> str:
    """A project's name as an index writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    """Versions by name; every line that is not a comment and not a hash must pin one."""
    lines = [line.rstrip(" \\") for line in text.splitlines() if line and not line.startswith(("#", " "))]
    found = dict(line.split("==") for line in lines)
    assert len(found) == len(lines)
    return {normal(name): version for name, version in found.items()}


def test_the_lock_pins_the_constraints_and_has_a_hash_for_each() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    constraints = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert pinned(lock) == {name: version for name, version in constraints.items() if name not in WITHOUT_HASH}
    for block in re.split(r"^(?=\S)", lock, flags=re.MULTILINE)[1:]:
        name, *hashes = block.splitlines()
        assert hashes, name
        for one in hashes:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", one), name


def test_all_that_the_project_asks_for_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lists = [
        project["build-system"]["requires"],
        project["project"]["dependencies"],
        *project["project"]["optional-dependencies"].values(),
        *project["dependency-groups"].values(),
    ]
    asked = {normal(re.split(r"[^\w.-]", one)[0]) for part in lists for one in part if "python_version <" not in one}
    assert asked <= set(pinned((ROOT / "constraints.txt").read_text(encoding="utf-8")))


def test_a_line_without_a_version_is_noticed() -> None:
    with pytest.raises(ValueError, match="dictionary update sequence"):
        pinned("torch>=2.4\n")


def test_the_oldest_python_and_the_oldest_and_newest_torch_run_every_week() -> None:
    """The oldest Python of pyproject is among the weekly ones, with each list of versions of `.ci/compat`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=")
    weekly = yaml.safe_load((ROOT / ".github" / "workflows" / "weekly.yml").read_text(encoding="utf-8"))
    compat = weekly["jobs"]["compat"]
    runs = {(one["versions"], one["python"]) for one in compat["strategy"]["matrix"]["include"]}
    assert {("low", oldest), ("newest", oldest)} <= runs
    assert any("bash .ci/compat" in step.get("run", "") for step in compat["steps"])
    assert "schedule" in weekly[True]  # `on:` is a Boolean of YAML 1.1
