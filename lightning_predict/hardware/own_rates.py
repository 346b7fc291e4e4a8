"""A machine's own rates: FLOP/s of large matmuls that the user measured, in place of the catalogue's rates.

Cards with the same name differ in power limit and cooling. The sustained rate of a machine corrects its matmul times.
`lightning-predict measure --quick` measures this rate in half a minute. Example::

    >>> from lightning_predict.hardware.layouts import layout_of
    >>> (own,) = with_own_rates([layout_of("8xB200")], {"bf16": 1103e12})
    >>> own.name, own.gpu.sustained_flops_per_second["bfloat16"] / 1e12
    ('8xB200-SXM-180GB', 1103.0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from lightning_predict.base.answers import NAMES_SHOWN
from lightning_predict.base.checked import positive_number, shown
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.units import flops_to_teraflops
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.lookup import gpu as find_gpu
from lightning_predict.hardware.records import DTYPE_WORDS, Gpu

OwnRates = Mapping[str, float | Mapping[str, float]]  # FLOP/s by dtype, or such a mapping by GPU name
ABOVE_PEAK: Final = 1.1  # Maximum ratio of a measured rate to the peak at the GPU's clock. Some boards boost higher.
BELOW_PEAK: Final = 0.02  # Minimum ratio of a measured rate to the peak. A smaller rate is probably in another unit.


def with_own_rates(layouts: Sequence[Layout], measured: OwnRates) -> tuple[Layout, ...]:
    """Return the layouts with the user's measured rates.

    Args:
        layouts: The layouts.
        measured: FLOP/s by dtype if all layouts have the same GPU, otherwise such mappings by GPU name.
    """
    by_name: dict[str, Mapping[str, float]] = {}
    common: dict[str, float] = {}
    for word, rates in measured.items():
        if isinstance(rates, Mapping):
            by_name[find_gpu(word).name] = rates
        else:
            common[word] = rates
    dtypes = {dtype for layout in layouts for dtype in layout.gpu.peak_flops_per_second}
    for word in common:
        if DTYPE_WORDS.get(word, word) not in dtypes:
            raise InvalidArgumentError(
                f"measured has {word!r}, which is not a dtype of these GPUs; choose of {', '.join(sorted(dtypes))}."
            )
    names = sorted({layout.gpu.name for layout in layouts})
    if common and len(names) > 1:
        some = ", ".join(names[:NAMES_SHOWN]) + " …" * (len(names) > NAMES_SHOWN)
        raise InvalidArgumentError(
            f"measured={shown(dict(common))} does not name its GPU, and there are {len(names)}: {some}. "
            f"Name it, as in {{{names[0]!r}: {{...}}}}."
        )
    rated = []
    for layout in layouts:
        rates = {**common, **by_name.get(layout.gpu.name, {})}
        for dtype, rate in rates.items():
            _check_range(layout.gpu, dtype, rate)
        rated.append(replace(layout, gpu=gpu_with_rates(layout.gpu, rates)))
    return tuple(rated)


def gpu_with_rates(card: Gpu, measured: Mapping[str, float]) -> Gpu:
    """Return a GPU with other sustained rates."""
    rates = {}
    for word, rate in measured.items():
        dtype = DTYPE_WORDS.get(word, word)
        if card.peak(dtype) is None:
            known = ", ".join(sorted(card.peak_flops_per_second))
            raise InvalidArgumentError(f"measured has {word!r}, which {card.name} does not compute; choose of {known}.")
        rates[dtype] = float(rate)
    return replace(
        card,
        measured_flops_per_second={**card.measured_flops_per_second, **rates},
        sustained_flops_per_second={**card.sustained_flops_per_second, **rates},
        own_rates=card.own_rates | set(rates),
    )


ATTENTION: Final = "attention"  # Name of fused attention among the work whose rate the user measured


def gpu_with_attention(card: Gpu, share: float) -> Gpu:
    """Return a GPU whose fused attention in 16 bits runs at a share of its predicted rate in a burst."""
    return replace(card, sustained_attention_share=share, own_rates=card.own_rates | {ATTENTION})


def _check_range(card: Gpu, word: str, rate: float) -> None:
    """Raise an error for a rate that is probably in another unit."""
    peak = card.peak(DTYPE_WORDS.get(word, word))
    number = positive_number(rate)
    if peak is None or (number is not None and BELOW_PEAK * peak <= number <= ABOVE_PEAK * card.overclock * peak):
        return
    raise InvalidArgumentError(
        f"measured[{word!r}]={shown(rate)} is not a rate of the {card.name}, whose peak is "
        f"{flops_to_teraflops(peak):.0f} TFLOP/s; give FLOP/s, such as 1103e12."
    )
