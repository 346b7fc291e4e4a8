"""Megatron's arguments as words of a strategy."""

from __future__ import annotations

import pytest

from lightning_predict.distributed.strategy import Strategy, strategy_of
from lightning_predict.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--tensor-model-parallel-size 8", Strategy(tensor=8, overlap_grad_reduce=False)),
        ("--tensor_model_parallel_size=8 --overlap_grad_reduce", Strategy(tensor=8)),
        (
            "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel "
            "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
            "--recompute-granularity selective",
            Strategy(
                data="zero1", tensor=4, pipeline=2, sequence=True, overlap_param_gather=True, recompute="selective"
            ),
        ),
        (
            "--context-parallel-size 2 --expert-model-parallel-size 8 --pipeline-model-parallel-size 1",
            Strategy(context=2, expert=8, overlap_grad_reduce=False),
        ),
    ],
)
def test_arguments_say_what_the_words_do(arguments: str, expected: Strategy) -> None:
    found = strategy_of(arguments)
    assert found == expected
    assert strategy_of(found.name) == found  # told back in our words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--swiglu",
            "the argument --swiglu says nothing here; leave out what is not about sharing. Understood are tensor",
        ),
        ("--tensor-model-parallel-size", "--tensor-model-parallel-size has no value; expected one behind it"),
        ("--recompute-granularity half", "--recompute-granularity half; expected full or selective"),
        ("--tensor-model-parallel-size eight", "tensor='eight' is not a number"),
    ],
)
def test_what_no_option_says_is_refused(arguments: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        strategy_of(arguments)
