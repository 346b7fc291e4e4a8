"""A run that continues on another number of ranks: training, forecast and used amounts, under DDP and FSDP."""

import json
from typing import Any

import pytest

from lightning_predict.observe.meters import named_offer
from tests.callbacks.ranks import launched
from tests.callbacks.resumed_ranks import BATCHES, CASES, ENDS, EPOCHS, LOST, OFFER, SHORT, SHORT_USD

Seen = dict[tuple[str, str], list[dict[str, Any]]]


@pytest.fixture(scope="module", params=[(2, 1), (1, 2)], ids=["two ranks to one", "one rank to two"])
def ranks(request: pytest.FixtureRequest) -> tuple[int, int]:
    """Return the numbers of ranks of the first part and of the rest."""
    first, rest = request.param
    return first, rest


@pytest.fixture(scope="module")
def seen(ranks: tuple[int, int], tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Return the observations of the ranks, by case and part."""
    folder, outcomes = tmp_path_factory.mktemp("resumed"), Seen()
    for part, world_size, cases in (("first", ranks[0], CASES), ("rest", ranks[1], CASES + SHORT)):
        module = "tests.callbacks.resumed_ranks"
        for ran in launched(module, folder, part, *cases, world_size=world_size, folder=folder):
            assert ran.returncode == 0, ran.stdout + ran.stderr
        for case in cases:
            files = [folder / case / f"{part}.{rank}.json" for rank in range(world_size)]
            outcomes[case, part] = [json.loads(path.read_text()) for path in files]
    return outcomes


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_training_equals_a_run_without_callbacks(seen: Seen, strategy: str, end: str) -> None:
    for part in ("first", "rest"):
        plain, watched = (seen[f"{strategy}, {end}, {how}", part] for how in ("plain", "watched"))
        for first, other in zip(plain, watched, strict=True):
            assert [first[name] for name in ("weights", "random", "batches", "steps")] == [
                other[name] for name in ("weights", "random", "batches", "steps")
            ]
            assert other["reason"] is None


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_each_part_costs_what_its_ranks_cost(seen: Seen, ranks: tuple[int, int], strategy: str, end: str) -> None:
    case = f"{strategy}, {end}, watched"
    first, rest = seen[case, "first"][0], seen[case, "rest"][0]
    usd = named_offer(OFFER).usd_per_hour / 3600
    assert first["used"] == pytest.approx({"seconds": first["clock"], "usd": first["clock"] * ranks[0] * usd})
    assert rest["used"]["seconds"] == pytest.approx(first["clock"] + rest["clock"])
    assert rest["used"]["usd"] == pytest.approx((first["clock"] * ranks[0] + rest["clock"] * ranks[1]) * usd)
    assert rest["said"] == [
        f"CostBudget: this run moved from {ranks[0]} x cpu to {ranks[1]} x cpu. Earlier use keeps its price; the rest "
        "is forecast from steps on this machine."
    ]
    if end.startswith("lost"):  # the ledger has them, the checkpoint does not
        assert first["clock"] == BATCHES / ranks[0] + LOST


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_rest_is_forecast_with_the_batches_of_the_new_ranks(
    seen: Seen, ranks: tuple[int, int], strategy: str, end: str
) -> None:
    rest = seen[f"{strategy}, {end}, watched", "rest"][0]
    assert rest["batches"] == (EPOCHS - 1) * BATCHES / ranks[1]
    predicted, actual = rest["forecast"]
    assert predicted == pytest.approx(actual, rel=0.03)


@pytest.mark.parametrize("case", SHORT)
def test_a_budget_that_is_too_small_for_both_parts_ends_all_ranks(
    seen: Seen, ranks: tuple[int, int], case: str
) -> None:
    rests = seen[case, "rest"]
    assert len({(outcome["reason"], outcome["batches"], outcome["weights"]) for outcome in rests}) == 1
    outcome = rests[0]
    assert outcome["reason"].startswith("forecast $0.0537 ")  # 24 s on both ranks, and 144 s on one rank, or 48 and 72
    assert outcome["batches"] < (EPOCHS - 1) * BATCHES / ranks[1]
    assert outcome["used"]["usd"] < SHORT_USD
