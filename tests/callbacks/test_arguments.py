import pytest

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.callbacks.arguments import check_choice, check_steps
from lightning_predict.observe.meters import amount_of


@pytest.mark.parametrize("steps", [0, -1, True, 1.0, "3"])
def test_numbers_of_steps(steps: int) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"steps=.* is not a number of steps; expected a whole number of at least"
    ):
        check_steps("steps", steps)
    check_steps("steps", 1)


@pytest.mark.parametrize("amount", [0, -1.0, float("nan"), float("inf")])
def test_amounts(amount: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"usd=.* is not a limit; expected a number above 0, or None"):
        amount_of("usd", amount)
    assert amount_of("usd", 1e-9) == 1e-9


def test_choices() -> None:
    check_choice("scope", "run", ("run", "all"))
    with pytest.raises(InvalidArgumentError, match="scope='none' is not known; expected one of 'run', 'all'"):
        check_choice("scope", "none", ("run", "all"))
