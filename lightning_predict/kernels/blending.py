"""How much a measured time counts beside what the models know of the GPU that is asked for.

With e = log(predicted / measured) on the origin and on the target, the ratio of predictions errs by e_target - e_origin
and the direct prediction by e_target. Their geometric mean with weight w on the ratio,

    t = ratio^w · direct^(1 - w) = model(target) · (measured / model(origin))^w,

errs by e_target - w · e_origin: w says which part of the origin's error comes back on the target. Where it does not,
a ratio only adds the origin's error to the target's. Where wave scaling errs less than either, it is used. All this is
learnt on pairs of GPUs (`training/blends.py`), by family of operations and by whether the models know either GPU, and
kept in `blend.json` beside the networks. Example::

    blends = read_blends()
    blends.of("convolution", origin_known=True, target_known=False).weight
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

from lightning_predict.errors import WeightsFormatError

BLEND_NAME: Final = "blend.json"
BUNDLED_BLENDS: Final = Path(__file__).parent.parent / "weights" / "files" / BLEND_NAME
FORMAT_VERSION: Final = 1

PAIR_KINDS: Final[Mapping[tuple[bool, bool], str]] = {
    (True, True): "known to known",
    (True, False): "known to unseen",
    (False, True): "unseen to known",
    (False, False): "unseen to unseen",
}
"""Kind of a pair by (origin, target): a GPU is known where its own measurements were trained on."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """How a ratio and a direct prediction make one.

    Attributes:
        weight: Share of the ratio in the geometric mean, in [0, 1].
        half_width: Half width of the 90 % interval in log(seconds).
        by_wave: Wave scaling errs less than any such mean, and is used instead; the half width is then its own.
    """

    weight: float
    half_width: float
    by_wave: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BlendTable:
    """What was learnt on pairs of GPUs.

    Attributes:
        families: Blends by family of operations and by the words of `PAIR_KINDS`.
        date: ISO date of the learning.
        split: Which rows: the seed of `training/tables.py`, and the shares held out and kept for calibration.
        sources: Titles of the measurements' sources, with their licences.
    """

    families: Mapping[str, Mapping[str, Blend]]
    date: str
    split: Mapping[str, float]
    sources: tuple[str, ...]

    def of(self, family: str, *, origin_known: bool, target_known: bool) -> Blend | None:
        """The blend of a family for a kind of pair; None where no pair of that kind was measured."""
        return self.families.get(family, {}).get(PAIR_KINDS[origin_known, target_known])

    def to_json(self) -> str:
        """Text of `blend.json`; `parse_blends` gives the same table back."""
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, indent=1, sort_keys=True) + "\n"


def parse_blends(text: str, *, where: str) -> BlendTable:
    """Read a table.

    Args:
        text: Content of `blend.json`.
        where: Its place, for error messages.

    Raises:
        WeightsFormatError: Not JSON, of another version, or with a missing or wrong field.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise _unusable(where, f"is not JSON ({error})") from None
    version = document.get("format_version") if isinstance(document, dict) else None
    if version != FORMAT_VERSION:
        raise _unusable(where, f"has format version {version!r}; this release reads {FORMAT_VERSION}")
    try:
        return BlendTable(
            families={
                family: {kind: _blend(f"{family}, {kind}", fields) for kind, fields in kinds.items()}
                for family, kinds in document["families"].items()
            },
            date=str(document["date"]),
            split={name: float(value) for name, value in document["split"].items()},
            sources=tuple(map(str, document["sources"])),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _unusable(where, f"has a missing or wrong field: {error}") from None


def read_blends(path: Path = BUNDLED_BLENDS) -> BlendTable:
    """The table at a path, by default the one that comes with the package.

    Raises:
        WeightsFormatError: It is missing or malformed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise _unusable(str(path), f"cannot be read ({error.strerror})") from None
    return parse_blends(text, where=str(path))


def _blend(place: str, fields: Mapping[str, Any]) -> Blend:
    by_wave = fields["by_wave"]
    blend = Blend(weight=float(fields["weight"]), half_width=float(fields["half_width"]), by_wave=by_wave)
    if place.split(", ")[1] not in PAIR_KINDS.values():
        raise ValueError(f"{place!r} is no kind of pair; expected one of {', '.join(PAIR_KINDS.values())}")
    if not 0 <= blend.weight <= 1:
        raise ValueError(f"{place}: weight {blend.weight:g}; expected 0 to 1")
    if not 0 < blend.half_width < float("inf"):
        raise ValueError(f"{place}: half width {blend.half_width:g}; expected a number above 0")
    if not isinstance(by_wave, bool):
        raise ValueError(f"{place}: by_wave {by_wave!r}; expected true or false")
    return blend


def _unusable(where: str, why: str) -> WeightsFormatError:
    return WeightsFormatError(
        f"The blend at {where} {why}. Expected a file written by `python -m lightning_predict.training.blends`; "
        "reinstall the package or learn it again."
    )
