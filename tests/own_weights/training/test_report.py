from __future__ import annotations

from rich.console import Console

from benchmarks.training.surrogates import ProxyScore
from benchmarks.training.weights import WIDTH, print_operators
from lightning_predict.weights.manifest import HeldOutError
from tests.own_weights.training.example import manifest_of_base

PROXY = ProxyScore(
    operation="lstm", dtype="float16", gpu="V100", rows=22, median=0.12, mean=0.2, bias=0.0, coverage=0.9
)


def printed(*, with_the_rest: bool) -> str:
    manifest = manifest_of_base({"linear/bfloat16/L40S": HeldOutError(rows=20, mean=0.2, median=0.19, coverage=0.9)})
    console = Console(width=WIDTH)
    with console.capture() as captured:
        print_operators((), manifest if with_the_rest else None, [PROXY] if with_the_rest else [], console)
    return captured.get()


def test_the_report_has_its_tables_in_order() -> None:
    text = printed(with_the_rest=True)
    titles = ("Errors on held-out", "left out of their training", "predicted through others", "What is to be reached")
    places = [text.index(title) for title in titles]
    assert places == sorted(places)
    assert "lstm" in text
    assert "19.0" in text  # of the GPU that was left out, against the 12 % that is to be reached


def test_what_nobody_measured_is_left_out() -> None:
    text = printed(with_the_rest=False)
    assert "left out of their training" not in text
    assert "predicted through others" not in text
