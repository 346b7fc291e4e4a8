"""Nothing of ours loads a native library that the step did not load: a damaged one ends the process in C."""

import ast
import os
from contextlib import suppress
from pathlib import Path
from shutil import copy

import pytest
import torch

from lightning_predict.record import environment, profiler
from lightning_predict.record.profiler import CUPTI_VARIABLE, detached_afterwards
from tests.processes import ROOT

LOADING: dict[str, str] = {  # Calls that load a library, or may
    "torch.backends.cudnn.version": "loads cuDNN",
    "torch.backends.cudnn.is_available": "loads cuDNN",
    "torch.cuda.nccl.version": "loads NCCL",
    "torch.backends.cuda.cufft_plan_cache": "loads cuFFT",
    "torch.ops.load_library": "loads any library",
    "torch.classes.load_library": "loads any library",
    "ctypes.CDLL": "loads any library",
    "ctypes.cdll": "loads any library",
    "ctypes.util.find_library": "starts a compiler",
    "numpy.ctypeslib.load_library": "loads any library",
    "torch.utils.cpp_extension": "compiles and loads code",
}

ALLOWED = {
    "lightning_predict/own_weights/first_hour.py": {"torch.backends.cudnn.version"},
    "lightning_predict/own_weights/measuring/clock.py": {"ctypes.CDLL"},
    "lightning_predict/planning/milp.py": {"ctypes.CDLL"},
    "lightning_predict/record/profiler.py": {"ctypes.CDLL"},
}
"""Commands outside of a training: two measure a GPU, which loads cuDNN and the driver's NVML; one calls the C library.
The profiler opens torch's own library, and only if it is loaded."""


def test_package_loads_no_native_libraries() -> None:
    libraries: dict[str, set[str]] = {}
    for path in (ROOT / "lightning_predict").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if name in LOADING:
                libraries.setdefault(str(path.relative_to(ROOT)), set()).add(name)
    assert libraries == ALLOWED


def test_profiler_opens_only_loaded_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    copy(Path(torch.__file__).parent / "lib" / "libshm.so", tmp_path / "lib" / "libtorch_cpu.so")
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    assert profiler._kineto_level.__wrapped__() is None
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_cudnn_version_is_read_from_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"nvidia-cudnn-cu12": "9.10.2.21"}
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(environment, "version", versions.__getitem__)
    assert environment.software_versions()["cudnn"] == "9.10.2.21"


@pytest.mark.parametrize(
    ("version", "own", "inside"),
    [
        ("13.0", None, "1"),
        ("14.1", None, "1"),
        ("12.8", None, None),
        (None, None, None),
        ("13.0", "0", "0"),
        ("13.0", "1", "1"),
    ],
)
def test_variable_is_set_only_while_the_profiler_stops(
    version: str | None, own: str | None, inside: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.delenv(CUPTI_VARIABLE, raising=False)
    if own is not None:
        monkeypatch.setenv(CUPTI_VARIABLE, own)
    with suppress(RuntimeError), detached_afterwards():
        assert os.environ.get(CUPTI_VARIABLE) == inside
        raise RuntimeError("CUPTI is gone")
    assert os.environ.get(CUPTI_VARIABLE) == own
