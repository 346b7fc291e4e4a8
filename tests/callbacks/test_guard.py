from __future__ import annotations

import inspect

import pytest

from lightning_predict.errors import BudgetExceededError
from lightning_predict.guard import never_raises


class Careful:
    def __init__(self) -> None:
        self.errors: list[Exception] = []

    @never_raises
    def hook(self, error: BaseException | None, *, more: int = 0) -> None:
        """Does something."""
        if error is not None:
            raise error

    def give_up(self, error: Exception) -> None:
        self.errors.append(error)


def test_an_error_goes_to_give_up() -> None:
    careful, error = Careful(), ValueError("wrong")
    careful.hook(error, more=1)
    careful.hook(None)
    assert careful.errors == [error]


def test_an_error_in_giving_up_is_said_and_goes_no_further(said: list[str]) -> None:
    class Careless(Careful):
        def give_up(self, error: Exception) -> None:
            raise RuntimeError("no way out")

    Careless().hook(ValueError("wrong"))
    words = "Careless failed (ValueError('wrong')), and so did giving up (RuntimeError('no way out'))."
    assert said == [words]
    said.clear()


@pytest.mark.parametrize("error", [BudgetExceededError("too much"), KeyboardInterrupt(), SystemExit(), StopIteration()])
def test_what_is_meant_to_leave_leaves(error: BaseException) -> None:
    careful = Careful()
    with pytest.raises(type(error)):
        careful.hook(error)
    assert careful.errors == []


def test_a_hook_keeps_its_name_and_signature() -> None:
    assert Careful.hook.__doc__ == "Does something."
    assert list(inspect.signature(Careful.hook).parameters) == ["self", "error", "more"]
