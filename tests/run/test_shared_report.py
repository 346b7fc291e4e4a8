"""Files that users send as evidence: written with a hash, and checked as foreign data before they count."""

import getpass
import json
import platform
from pathlib import Path
from typing import Any

import pytest

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.run.shared_report import findings, write_report

RUN = {
    "fingerprint": "f" * 32,
    "gpu": "T4",
    "samples": 16,
    "step_seconds": 0.25,
    "predicted_seconds": 100.0,
    "actual_seconds": 110.0,
    "date": "2026-11-20",
}
HOUR = {
    "minutes": 8.0,
    "preset": "all",
    "parts": {
        "machine": {
            "state": "done",
            "seconds": 0.1,
            "facts": {"gpu": "NVIDIA H200", "memory_bytes": 150_109_880_320, "torch": "2.11.0"},
        },
        "steps": {"state": "failed", "reason": "RuntimeError: CUDA out of memory", "seconds": 3.0},
    },
}


def with_value(document: dict[str, Any], keys: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """Copy of a document with one value changed."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    place: Any = copy
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return copy


@pytest.mark.parametrize("content", [{"runs": [RUN]}, {"runs": []}, HOUR])
def test_a_report_as_written_can_be_sent(tmp_path: Path, content: dict[str, Any]) -> None:
    write_report(tmp_path / "r.json", content)
    assert findings(tmp_path / "r.json") == ()


REASONS: list[tuple[dict[str, Any], tuple[str | int, ...], object, str]] = [
    ({"runs": [RUN]}, ("runs", 0, "gpu"), "T5", "'T5' is not a GPU"),
    (
        {"runs": [RUN]},
        ("runs", 0, "actual_seconds"),
        110e6,
        r"runs\[0\].actual_seconds is 1.1e\+08; expected 0 to 1e\+08",
    ),
    ({"runs": [RUN]}, ("runs", 0, "actual_seconds"), 1.1e5, r"runs\[0\] took 1.1e\+03 times its prediction"),
    ({"runs": [RUN]}, ("runs", 0, "step_seconds"), -1.0, "step_seconds is -1"),
    ({"runs": [RUN]}, ("runs", 0, "date"), "yesterday", "date is 'yesterday'; expected a date like 2025"),
    ({"runs": [RUN]}, ("runs", 0, "settings"), {"data": "/home/ann/images"}, "settings.data names a path: '/home/ann"),
    ({"runs": [RUN]}, ("runs", 0, "settings"), {"C:\\Users\\ann": "1"}, "names a path"),
    ({"runs": [RUN]}, ("runs", 0, "settings"), {"by": "ann@example.org"}, "settings.by names a mail address"),
    (HOUR, ("parts", "steps", "reason"), "FileNotFoundError: '/root/x.so'", "parts.steps.reason names a path"),
    (HOUR, ("parts", "steps", "state"), "perhaps", "parts.steps.state is 'perhaps'; expected one of done, skipped"),
    (HOUR, ("parts", "machine", "facts", "memory_bytes"), -1, "memory_bytes is -1; expected 0 to 1e\\+15 bytes"),
    (HOUR, ("parts", "machine", "facts", "gpu"), "NVIDIA H2000", "'NVIDIA H2000' is not a GPU"),
]


@pytest.mark.parametrize(("document", "keys", "value", "message"), REASONS)
def test_each_impossible_or_private_value_is_named_with_its_place(
    document: dict[str, Any], keys: tuple[str | int, ...], value: object, message: str, tmp_path: Path
) -> None:
    write_report(tmp_path / "r.json", with_value(document, keys, value))
    problems = findings(tmp_path / "r.json")
    assert problems
    with pytest.raises(AssertionError, match=message):
        raise AssertionError("\n".join(problems))


@pytest.mark.parametrize("own", ["ann-smith", "node17.lab"])
def test_names_of_this_machine_and_its_user_are_found(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ann-smith")
    monkeypatch.setattr(platform, "node", lambda: "node17.lab")
    write_report(tmp_path / "r.json", with_value(HOUR, ("parts", "steps", "reason"), f"lost {own} at 3"))
    (problems,) = findings(tmp_path / "r.json")
    assert "names this machine or its user" in problems
    write_report(tmp_path / "r.json", with_value(HOUR, ("parts", "steps", "reason"), f"lost some{own}s at 3"))
    assert findings(tmp_path / "r.json") == ()


def test_a_changed_report_no_longer_has_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    sealed = write_report(path, {"runs": [RUN]})
    path.write_text(json.dumps(with_value(sealed, ("runs", 0, "actual_seconds"), 100.0)))
    assert findings(path) == (
        f"{path}: sha256 is not that of this content, which was changed or cut. Write the file again.",
    )


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": 3}', '{"runs": 3}', "\x00\x01", '{"runs": [NaN]}'])
def test_a_file_of_another_kind_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(InvalidArgumentError):
        findings(tmp_path / "r.json")
