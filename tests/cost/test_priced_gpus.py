"""Groups of GPUs: those with a current price, the table shows the best."""

from dataclasses import replace

import pytest

from lightning_predict import predict
from lightning_predict.base.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.base.interval import Interval
from lightning_predict.cost.offers import KINDS, from_providers, kind_of_provider, load_offers
from lightning_predict.cost.prediction import Prediction
from lightning_predict.cost.priced_gpus import PricedGpus, is_consumer, layouts_to_predict
from lightning_predict.hardware import gpu
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import FEWEST_ROWS, MOST_ROWS, ranking_lines
from lightning_predict.testing import example_offer, example_prediction, example_trace, with_values


def run(name: str, hours: float, usd: float, **values: object) -> Prediction:
    total = Interval(3600 * hours, 3600 * hours, 3600 * hours)
    return with_values(
        example_prediction(name), total=total, cost_usd=usd, usd_per_hour=usd / hours, memory_fit="fits", **values
    )


def test_group_equals_its_gpus_priced_within_180_days() -> None:
    # No list of names decides: each GPU with a current price is compared, as if it had been named.
    trace = example_trace(1024)
    ranking = predict(trace, iterations=10_000_000, history=False).ranking()
    newest = max(offer.date for offer in load_offers())
    assert newest > "2026"
    everything = [layout.name for layout in layouts_to_predict("all")]
    named = predict(trace, gpus=everything, iterations=10_000_000, history=False).ranking()
    assert ranking.cheapest is not None
    assert named.cheapest is not None
    assert ranking.cheapest.gpu == named.cheapest.gpu
    assert ranking.compared == len(everything) > 30
    assert f"cheapest of the {len(everything)} GPUs with a price" in " ".join(str(ranking).split())
    offers = [
        example_offer("L4", date="2026-07-01"),
        example_offer("T4", date="2026-01-02"),  # 180 days older
        example_offer("A10G", date="2026-01-01"),  # 181 days older
        example_offer("RTX-4090", date="2026-06"),
    ]
    assert [layout.name for layout in layouts_to_predict("all", offers=offers)] == ["T4", "L4", "RTX-4090"]
    assert [layout.name for layout in layouts_to_predict(["datacenter"], offers=offers)] == ["T4", "L4"]
    own = layouts_to_predict("consumer", offers=offers, usd_per_hour={"RTX-3090": 0.2, "8xL4": 5.0})
    assert isinstance(own, PricedGpus)
    assert (own.group, [layout.name for layout in own]) == ("consumer", ["RTX-3090", "RTX-4090"])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("cheap", "is no group of GPUs; expected all, datacenter, consumer"),
        ("consumer", "no such GPU has a current price"),
    ],
)
def test_a_group_without_gpus_is_refused(names: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        layouts_to_predict(names, offers=[example_offer("L4")])


def test_a_group_with_a_typing_mistake_is_suggested() -> None:
    with pytest.raises(
        UnknownGpuError, match=r"'dataccenter' is neither a GPU nor a group of GPUs\. Did you mean 'datac"
    ):
        layouts_to_predict(["dataccenter"])
    with pytest.raises(UnknownGpuError, match="'L40X' is not a GPU of the catalogue"):
        layouts_to_predict(["L40X"])


@pytest.mark.parametrize(
    ("name", "consumer"),
    [
        ("RTX-4090", True),
        ("GTX-1080-Ti", True),
        ("TITAN-V", True),
        ("RTX-4000-Ada", False),
        ("RTX-A6000", False),
        ("RTX-6000-Ada", False),
        ("RTX-PRO-6000-Server", False),
        ("Quadro-RTX-6000", False),
        ("L4", False),
    ],
)
def test_consumer_cards_are_geforce_and_titan(name: str, consumer: bool) -> None:
    assert is_consumer(gpu(name)) == consumer


def test_table_shows_the_front_the_gpu_of_the_recording_and_rivals() -> None:
    front = [run(name, 10 / n, n) for n, name in enumerate(("T4", "L4", "A10G", "L40S", "A40", "A30", "A10", "L40"), 1)]
    slower = [run("K80", 20, 9.0), run("M60", 30, 30.0)]
    too_large = with_values(run("P4", 1, 0.1), memory_fit="exceeds")
    predictions = Predictions((*front, *slower, too_large), group="all", used_gpu="M60")
    shown = list(predictions.shown())
    assert shown[0] == "M60"
    assert len(shown) == MOST_ROWS + 1
    assert {"T4", "L4", "A10G"} <= set(shown)  # each step of the front there saves a quarter or more
    assert not {"K80", "P4"} & set(shown)
    assert "verbose adds 3 other GPUs" in " ".join(str(predictions).split())
    assert "K80" in predictions.text(verbose=True)
    assert "K80" in predictions
    assert "The run does not fit on 1 of the GPUs with a price." in ranking_lines(predictions.ranking())
    doubt = Interval(3600.0, 7200.0, 14400.0)
    best = [run("A100-SXM-80GB", 1, 1.0), with_values(run("L4", 2, 1.02), total=doubt)]
    others = [run(name, 10 + n, 3 + n) for n, name in enumerate(("T4", "A10G", "A40", "A30"))]
    predictions = Predictions((*best, *others), group="all")
    assert list(predictions.shown()) == ["A100-SXM-80GB", "L4", "T4", "A10G", "A40"][:FEWEST_ROWS]
    assert list(Predictions((*best, *others)).shown()) == [one.gpu for one in (*best, *others)]  # named: all


def test_gpu_sold_in_larger_machines_states_its_share() -> None:
    offers = [example_offer("L40", 10.0, num_gpus=8), example_offer("T4", 20.0)]
    predictions = predict(example_trace(1024), offers=offers, iterations=10**9, history=False)
    lines = " ".join(ranking_lines(predictions.ranking()))
    assert "Rent an L40 ($10.00/h): cheapest of the 2 GPUs with a price" in lines
    assert "sold only in eights: $1.25/h each." in lines
    assert "L40: sold only in machines of 8; the cost pays for all 8 ($1.25/h for each GPU)." in str(predictions)
    whole = predict(example_trace(1024), gpus=["8xL40"], offers=offers, iterations=10**9, history=False)
    assert "sold only" not in f"{whole}{whole.ranking()}"


def test_the_kind_of_provider_is_part_of_the_recommendation() -> None:
    for kind, words in {"marketplace": "marketplace", "specialised": "specialised cloud"}.items():
        offers = [example_offer("T4", 0.5, provider=KINDS[kind][0])]
        predictions = predict(example_trace(1024), offers=offers, iterations=10**9, history=False)
        assert f", {words}" in " ".join(ranking_lines(predictions.ranking()))
    assert kind_of_provider("aws") == "hyperscaler"
    assert kind_of_provider("Somebody's garage") is None


def test_providers_are_selected_by_name_and_kind() -> None:
    unknown = {offer.provider for offer in load_offers() if kind_of_provider(offer.provider) is None}
    assert unknown <= {"In-house"}
    chosen = from_providers(["lambda", "marketplace"])
    kinds = {offer.provider for offer in chosen}
    assert "Lambda" in kinds
    assert kinds - {"Lambda"} <= set(KINDS["marketplace"])
    assert from_providers("AWS", [example_offer("T4", provider="AWS"), example_offer("L4")])[0].gpu == "T4"
    with pytest.raises(InvalidArgumentError, match="'Nobody' has no offer here; expected some of marketplace"):
        from_providers(["Nobody"])


def test_the_gpu_of_the_recording_is_predicted_without_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = replace(example_trace(1024), device="cuda:0", gpu_reported_name="NVIDIA L20", step_seconds=(0.1,))
    predictions = predict(trace, offers=[example_offer("T4", 0.5)], iterations=1000, history=False)
    assert predictions.used_gpu == "L20"
    assert next(iter(predictions.shown())) == "L20"
    assert predictions["L20"].cost_usd is None
    assert predictions.ranking().compared == 1
