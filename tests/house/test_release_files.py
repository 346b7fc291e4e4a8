"""Files of a release that repeat what others say: dependencies, version, addresses."""

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


def test_conda_recipe_has_the_dependencies_of_the_project() -> None:
    expected = {"python": PROJECT["requires-python"].removeprefix(">=")}
    for text in PROJECT["dependencies"]:
        name, versions = re.fullmatch(r"([\w.-]+)([^;]*)(?:;.*)?", text).groups()  # type: ignore[union-attr]
        expected[CONDA_NAMES.get(name, name)] = versions.strip()
    found = dict(line.split(" ", 1) for line in RECIPE["requirements"]["run"])
    assert found.pop("python") == ">=${{ python_min }}"
    assert RECIPE["context"]["python_min"] == expected.pop("python")
    assert found == expected
    assert RECIPE["context"]["version"] == __version__


def test_each_file_named_in_notice_is_in_this_checkout() -> None:
    named = re.findall(r"lightning_predict/[\w./]+\w", (ROOT / "NOTICE").read_text(encoding="utf-8"))
    assert "lightning_predict/record/named_models/models.json" in named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_prices_and_configurations_renew_themselves() -> None:
    renew = yaml.safe_load((ROOT / ".github" / "workflows" / "renew.yml").read_text(encoding="utf-8"))
    rows = renew["jobs"]["renew"]["strategy"]["matrix"]["include"]
    assert {row["target"] for row in rows} == {"prices", "configurations"}
    targets = re.findall(r"^[\w-]+(?=:)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert [row for row in rows if row["target"] not in targets or not (ROOT / row["path"]).exists()] == []


def test_addresses_of_the_project_lead_to_files_of_this_checkout() -> None:
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
        } <= {
            *targets,
            *re.findall(r"github\.run_number|matrix\.\w+", command),
        }
    for script in re.findall(r"(?:run: |bash )(\.ci/\w+)", text):
        assert (ROOT / script).is_file()
