from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_predict.errors import WeightsFormatError
from lightning_predict.kernels.blending import PAIR_KINDS, Blend, BlendTable, parse_blends, read_blends
from lightning_predict.kernels.utilisation import FAMILIES

TABLE = BlendTable(
    families={"vector": {"known to known": Blend(weight=0.25, half_width=0.1, by_wave=True)}},
    date="2026-11-21",
    split={"seed": 0.0, "held_out_share": 0.15},
    sources=("somebody (MIT)",),
)


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    (tmp_path / "blend.json").write_text(TABLE.to_json())
    assert read_blends(tmp_path / "blend.json") == TABLE


def test_a_blend_is_found_by_family_and_kind_of_pair() -> None:
    assert TABLE.of("vector", origin_known=True, target_known=True) == Blend(weight=0.25, half_width=0.1, by_wave=True)
    assert TABLE.of("vector", origin_known=True, target_known=False) is None
    assert TABLE.of("attention", origin_known=True, target_known=True) is None


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(TABLE.to_json()), **fields})


def with_blend(kind: str = "known to known", **fields: Any) -> str:
    return changed(families={"vector": {kind: {"weight": 0.5, "half_width": 0.1, "by_wave": False, **fields}}})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", r"The blend at here is not JSON \(.*\)\. Expected a file written by `python -m .*blending`; reinstall"),
        ("[]", r"has format version None; this release reads 1"),
        (changed(format_version=7), r"has format version 7"),
        (changed(families=None), r"has a missing or wrong field"),
        (changed(split=3), r"has a missing or wrong field"),
        (with_blend(weight=1.5), r"vector, known to known: weight 1.5; expected 0 to 1"),
        (with_blend(weight=float("nan")), r"weight nan; expected 0 to 1"),
        (with_blend(half_width=0), r"half width 0; expected a number above 0"),
        (with_blend(half_width=float("inf")), r"half width inf"),
        (with_blend(weight="much"), r"could not convert string to float: 'much'"),
        (with_blend(by_wave="yes"), r"by_wave 'yes'; expected true or false"),
        (with_blend("here to there"), r"'vector, here to there' is no kind of pair; expected one of known to known"),
    ],
)
def test_a_malformed_table_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(WeightsFormatError, match=words):
        parse_blends(text, where="here")


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsFormatError, match=r"blend\.json cannot be read \(No such file or directory\)"):
        read_blends(tmp_path / "blend.json")


def test_the_shipped_table_has_every_family_and_kind() -> None:
    """Every family has GPUs with own weights and bases that leave GPUs out, so every kind of pair was measured."""
    table = read_blends()
    assert set(table.families) == set(FAMILIES) - {"convolution_tensor"}  # of which no table was public
    for kinds in table.families.values():
        assert set(kinds) == set(PAIR_KINDS.values())
    assert table.sources
