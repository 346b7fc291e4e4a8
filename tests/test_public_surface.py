"""The public surface fits on a card, and importing it is cheap."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import lightning_predict
from lightning_predict.base import errors

CARD = [
    "Advice",
    "Gpu",
    "LightningPredictError",
    "Prediction",
    "Predictions",
    "Trace",
    "advise",
    "best_layouts",
    "capture",
    "gpu",
    "gpu_names",
    "import_trace",
    "operator_seconds",
    "peak_flops",
    "predict",
    "step_of",
    "watch",
    "ways_to_fit",
]


def modules_after(statement: str) -> set[str]:
    """Modules that a fresh interpreter holds after a statement."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_public_names_are_those_listed_and_unlike_modules() -> None:
    assert lightning_predict.__all__ == CARD
    for name in CARD:
        assert getattr(lightning_predict, name) is not None
        assert name in dir(lightning_predict)
    with pytest.raises(AttributeError, match=r"has no attribute 'predictt'; it offers Advice, Gpu, .*predict"):
        lightning_predict.predictt  # noqa: B018
    functions = set(CARD) - {name for name in CARD if name[0].isupper()}
    package = Path(lightning_predict.__file__).parent
    assert not functions & {path.stem for path in package.rglob("*.py")}
    assert not functions & {path.name for path in package.rglob("*") if path.is_dir()}
    from lightning_predict import callbacks

    assert sorted(callbacks.__all__) == ["CostBudget", "RuntimePredictor"]


@pytest.mark.parametrize("statement", ["import lightning_predict", "from lightning_predict import predict, gpu, Trace"])
def test_prediction_imports_no_torch_and_no_lightning(statement: str) -> None:
    loaded = modules_after(statement)
    assert "lightning_predict" in loaded
    assert not {"torch", "lightning", "pytorch_lightning", "matplotlib", "requests"} & loaded


def test_package_in_an_archive_says_what_to_do(tmp_path: Path) -> None:
    package = Path(lightning_predict.__file__).parent
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in (package / "__init__.py", *(package / "base").glob("*.py")):
            archive.write(file, file.relative_to(package.parent))
    process = subprocess.run(
        [sys.executable, "-c", "import lightning_predict"],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "all.zip")},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "cannot run from an archive" in process.stderr
    assert process.returncode == 1


def test_the_import_test_can_fail() -> None:
    assert "torch" in modules_after("import torch")


def test_every_error_has_the_root_and_a_docstring() -> None:
    kinds = [
        value for value in vars(errors).values() if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert len(kinds) > 10
    for kind in kinds:
        assert issubclass(kind, errors.LightningPredictError)
        assert kind.__doc__
        assert f"`{kind.__name__}`" in (errors.__doc__ or ""), f"{kind.__name__} is missing from the tree"
