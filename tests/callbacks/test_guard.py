from __future__ import annotations

import inspect

import pytest

from lightning_predict.errors import BudgetExceededError
from lightning_predict.guard import fallback_on_error, log_exceptions


class Careful:
    def __init__(self) -> None:
        self.errors: list[Exception] = []

    @log_exceptions
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


@pytest.mark.parametrize("error", [StopIteration(3), GeneratorExit()])
def test_what_a_loop_would_take_for_an_end_goes_to_give_up(error: BaseException) -> None:
    careful = Careful()
    careful.hook(error)
    (kept,) = careful.errors
    assert isinstance(kept, Exception)
    assert repr(error) in repr(kept)


def test_what_is_asked_of_a_method_is_given_otherwise_where_it_fails(said: list[str]) -> None:
    reported: list[Exception] = []

    class Asked:
        @fallback_on_error(dict, lambda _, error: reported.append(error))
        def state(self, error: BaseException | None) -> dict[str, int]:
            if error is not None:
                raise error
            return {"steps": 3}

        @fallback_on_error(lambda: 7, lambda *_: reported[99])
        def number(self) -> int:
            raise ValueError("wrong")

    asked, error = Asked(), ValueError("wrong")
    assert [asked.state(None), asked.state(error), asked.state(GeneratorExit())] == [{"steps": 3}, {}, {}]
    assert [repr(one) for one in reported] == ["ValueError('wrong')", "RuntimeError('GeneratorExit()')"]
    assert asked.number() == 7
    assert said == [
        "Asked.number failed (ValueError('wrong')), and so did saying it (IndexError('list index out of range'))."
    ]
    said.clear()
    with pytest.raises(KeyboardInterrupt):
        asked.state(KeyboardInterrupt())


@pytest.mark.parametrize("error", [BudgetExceededError("too much"), KeyboardInterrupt(), SystemExit()])
def test_what_is_meant_to_leave_leaves(error: BaseException) -> None:
    careful = Careful()
    with pytest.raises(type(error)):
        careful.hook(error)
    assert careful.errors == []


def test_a_hook_keeps_its_name_and_signature() -> None:
    assert Careful.hook.__doc__ == "Does something."
    assert list(inspect.signature(Careful.hook).parameters) == ["self", "error", "more"]
