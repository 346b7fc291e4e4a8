"""Files of a release that repeat what others say: dependencies, version, addresses, and the lock of versions."""

import re
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from lightning_predict import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECIPE: Final[dict[str, Any]] = yaml.safe_load((ROOT / ".ci/conda/recipe.yaml").read_text(encoding="utf-8"))
CONDA_NAMES: Final = {"torch": "pytorch"}
WITHOUT_HASH = {"torch"}  # Its CPU builds come from another index, which serves other files under the same version


def test_conda_recipe_has_the_dependencies_of_the_project() -> None:
    expected = {"python": PROJECT["requires-python"].removeprefix(">=")}
    for text in PROJECT["dependencies"]:
        name, versions = re.fullmatch(r"([\w.-]+)([^;]*)(?:;.*)?", text).groups()  # type: ignore[union-attr]
        expected[CONDA_NAMES.get(name, name)] = versions.strip()
    dependencies = dict(line.split(" ", 1) for line in RECIPE["requirements"]["run"])
    assert dependencies.pop("python") == ">=${{ python_min }}"
    assert RECIPE["context"]["python_min"] == expected.pop("python")
    assert dependencies == expected
    assert RECIPE["context"]["version"] == __version__


def test_notices_addresses_and_renewals_name_what_exists() -> None:
    named = re.findall(r"lightning_predict/[\w./]+\w", (ROOT / "NOTICE").read_text(encoding="utf-8"))
    assert "lightning_predict/record/named_models/models.json" in named
    assert [path for path in named if not (ROOT / path).exists()] == []
    renew = yaml.safe_load((ROOT / ".github" / "workflows" / "renew.yml").read_text(encoding="utf-8"))
    rows = renew["jobs"]["renew"]["strategy"]["matrix"]["include"]
    assert {row["target"] for row in rows} == {"prices", "configurations"}
    targets = re.findall(r"^[\w-]+(?=:)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert [row for row in rows if row["target"] not in targets or not (ROOT / row["path"]).exists()] == []
    pages = "\n".join([(ROOT / "README.md").read_text(encoding="utf-8"), *PROJECT["urls"].values()])
    inside = re.findall(r"lightning-predict/lightning-predict/(?:blob|tree)/main/([^\s)#>\"]+)", pages)
    assert len(inside) > 10
    assert [path for path in inside if not (ROOT / path).exists()] == []


WORKFLOWS: Final = sorted(str(path.relative_to(ROOT)) for path in (ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("name", ["CITATION.cff", ".readthedocs.yaml", *WORKFLOWS])
def test_files_for_services_are_valid_yaml_and_call_what_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert isinstance(yaml.safe_load(text), dict)
    targets = re.findall(r"^[\w-]+(?=:)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for command in re.findall(r"run: make (.*)", text):
        assert {
            word for word in command.split() if "=" not in word and not word.startswith((".venv", "$", "}", "{"))
        } <= {*targets, *re.findall(r"github\.run_number|matrix\.\w+", command)}
    for script in re.findall(r"(?:run: |bash )(\.ci/\w+)", text):
        assert (ROOT / script).is_file()


def normal(name: str) -> str:
    """A project's name as an index writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    """Versions by name; every line that is not a comment and not a hash must pin one."""
    lines = [line.rstrip(" \\") for line in text.splitlines() if line and not line.startswith(("#", " "))]
    versions = dict(line.split("==") for line in lines)
    assert len(versions) == len(lines)
    return {normal(name): version for name, version in versions.items()}


def test_the_lock_pins_the_constraints_and_has_a_hash_for_each() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    constraints = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert pinned(lock) == {name: version for name, version in constraints.items() if name not in WITHOUT_HASH}
    for block in re.split(r"^(?=\S)", lock, flags=re.MULTILINE)[1:]:
        name, *hashes = block.splitlines()
        assert hashes, name
        for line in hashes:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line), name


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
    runs = {(entry["versions"], entry["python"]) for entry in compat["strategy"]["matrix"]["include"]}
    assert {("low", oldest), ("newest", oldest)} <= runs
    assert any("bash .ci/compat" in step.get("run", "") for step in compat["steps"])
    assert "schedule" in weekly[True]  # `on:` is a Boolean of YAML 1.1
