"""Files that users send as evidence: the report of `first-hour`, and the runs of `history export`.

The sender seals a file with a hash of its content. `findings` checks a file as foreign data: its hash, its numbers, and
that no text names a machine, a user or a path. Example::

    write_report(Path("runs.json"), {"runs": [asdict(record) for record in read_history()]})
    findings(Path("runs.json"))   # () if it may be sent, and counted as measurements
"""

from __future__ import annotations

import getpass
import hashlib
import json
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from lightning_predict.base import __version__
from lightning_predict.base.answers import json_value
from lightning_predict.base.checked import Checked, read_json, shown
from lightning_predict.base.errors import InvalidArgumentError, LightningPredictError
from lightning_predict.base.files import write_atomically
from lightning_predict.hardware import gpu
from lightning_predict.run.history import MAX_RATIO, record_of

SEAL: Final = "sha256"
VERSION: Final = "lightning_predict"

LIMITS: Final[Mapping[str, float]] = {"seconds": 1e8, "bytes": 1e15, "minutes": 1e6}
"""Maximum values by the last word of a key: three years, a petabyte. A larger value is in another unit."""

_PRIVATE: Final[Mapping[str, re.Pattern[str]]] = {
    "a path": re.compile(
        r"(?:^|[\s'\"(=:])(?:~/\w|[A-Za-z]:\\|\\\\\w|/(?:home|Users|root|tmp|mnt|media|opt|usr|var|data|work)/)"
    ),
    "a mail address": re.compile(r"[\w.+-]+@[\w-]+\.\w+"),
    "a server": re.compile(r"\b(?:https?|ssh|s3|gs)://"),
}


def write_report(path: Path, content: Mapping[str, object]) -> dict[str, object]:
    """Write a file with the version and the hash of its content, and return what it holds."""
    plain = json.loads(json.dumps(json_value({VERSION: __version__, **content}), default=str))
    sealed: dict[str, object] = {**plain, SEAL: _hash(plain)}
    write_atomically(path, json.dumps(sealed, indent=1).encode() + b"\n")
    return sealed


def findings(path: Path) -> tuple[str, ...]:
    """Return the reasons not to send or count a file, each with its place; empty if there are none."""
    report = read_json(path, InvalidArgumentError)
    content = report.mapping()
    checked: list[tuple[Callable[[Checked], None], Checked]]
    if report.has("runs"):
        checked = [(_check_run, run) for run in report.member("runs").items()]
    elif report.has("parts"):
        checked = [(_check_part, part) for part in report.member("parts").members().values()]
    else:
        raise report.error("has neither `runs` nor `parts`. Send what `history export` or `first-hour` wrote.")
    errors = []
    for check, value in checked:
        try:
            check(value)
        except LightningPredictError as error:
            errors.append(str(error))
    if content.get(SEAL) != _hash({key: value for key, value in content.items() if key != SEAL}):
        errors.append(f"{path}: {SEAL} is not that of this content, which was changed or cut. Write the file again.")
    own = [word for word in _own_names() if len(word) > 2 and word not in ("root", "localhost")]
    return (*errors, *(str(error) for leaf in _leaves(report) for error in _leaf_errors(leaf, own)))


def _hash(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _check_run(run: Checked) -> None:
    """Raise an error for a run that cannot have happened."""
    record = record_of(run)
    gpu(record.gpu)
    run.member("date").date()
    ratio = record.actual_seconds / record.predicted_seconds
    if not 1 / MAX_RATIO <= ratio <= MAX_RATIO:
        raise run.error(f"took {ratio:.3g} times its prediction. Leave it out, or correct its unit.")


def _check_part(part: Checked) -> None:
    """Raise an error for a part of a first hour that is in another form."""
    part.member("state").choice(("done", "skipped", "failed"))
    if part.has("facts") and part.member("facts").has("gpu"):
        gpu(
            part.member("facts").member("gpu").text(), memory_bytes=part.member("facts").member("memory_bytes").number()
        )


def _own_names() -> Iterator[str]:
    """Yield the names of this machine and its user, which the sender checks for."""
    yield platform.node()
    with suppress(OSError, KeyError, ImportError):  # a container without a name for its user
        yield getpass.getuser()


def _leaves(value: Checked) -> Iterator[Checked]:
    if isinstance(value.value, dict):
        for name, member in value.members().items():
            yield Checked(name, value.file, f"{member.place} (its name)")
            yield from _leaves(member)
    elif isinstance(value.value, list):
        for item in value.items():
            yield from _leaves(item)
    else:
        yield value


def _leaf_errors(leaf: Checked, own: list[str]) -> Iterator[LightningPredictError]:
    """Yield an error for a text that tells who sends the file, and for a number in another unit."""
    if isinstance(leaf.value, str):
        told = [what for what, pattern in _PRIVATE.items() if pattern.search(leaf.value)]
        is_own = any(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", leaf.value) for word in own)
        told += ["this machine or its user"] if is_own else []
        for what in told:
            yield leaf.error(f"names {what}: {shown(leaf.value)}. Replace it and write the file again.")
    elif isinstance(leaf.value, int | float) and not isinstance(leaf.value, bool):
        unit = re.split(r"[_.\[]", re.sub(r"(\[\d+\])+$", "", leaf.place))[-1]
        most = LIMITS.get(unit)
        if most is not None and not 0 <= leaf.value <= most:
            yield leaf.error(f"is {leaf.value:g}; expected 0 to {most:g} {unit}.")
