"""Predictions made by hand, with round numbers from which every printed value can be checked by eye."""

from dataclasses import replace

from lightning_predict.base.interval import Interval
from lightning_predict.cost.prediction import Prediction
from lightning_predict.reports.predictions import Predictions
from lightning_predict.testing import example_prediction, with_values

GIBIBYTE = 2**30

MINIMAL = example_prediction(  # Only what every prediction knows
    "L4",
    iteration=Interval(0.0180, 0.0200, 0.0230),
    device_seconds=0.0200,
    host_seconds=0.0050,
)

T4 = example_prediction(
    "T4",
    iteration=Interval(0.0450, 0.0480, 0.0520),
    device_seconds=0.0480,
    host_seconds=0.0050,
    measured_seconds=0.0475,
    iterations=240_000,
    total=Interval(10_800.0, 11_520.0, 12_480.0),  # 240,000 × 0.048 s = 3 h 12 min
    samples_per_second=1333.0,
    usd_per_hour=0.35,
    cost_usd=1.12,  # 3.2 h × $0.35
    offer="Google n1-standard-4 (2026-10-01)",
    memory_bytes=7.81 * GIBIBYTE,
    memory_fit="fits",
    memory_free_bytes=6.29 * GIBIBYTE,
    usable_bytes=14.1 * GIBIBYTE,
    coverage={"mlp": 0.92, "roofline": 0.08},
)

H100 = with_values(
    T4,
    layout="H100-SXM-80GB",
    iteration=Interval(0.0051, 0.0060, 0.0074),
    device_seconds=0.0042,
    host_seconds=0.0060,
    measured_seconds=None,
    total=Interval(1_224.0, 1_440.0, 1_776.0),  # 240,000 × 0.006 s = 24 min
    usd_per_hour=2.99,
    cost_usd=1.196,  # 0.4 h × $2.99
    offer="Lambda gpu_1x_h100_sxm5 (2026-11-01)",
    memory_free_bytes=69.4 * GIBIBYTE,
    usable_bytes=77.21 * GIBIBYTE,
    coverage={"wave": 0.296, "mlp": 0.70, "roofline": 0.004},
    notes=("No kernel model knows aten::foo; its 3 calls count as roofline.",),
)

K80 = with_values(
    T4,
    gpu="K80",
    iteration=Interval(0.9, 1.2, 1.7),
    device_seconds=1.2,
    measured_seconds=None,
    total=Interval(216_000.0, 288_000.0, 408_000.0),  # 240,000 × 1.2 s = 3 d 8 h
    usd_per_hour=None,
    cost_usd=None,
    offer=None,
    memory_bytes=12.5 * GIBIBYTE,
    memory_fit="exceeds",
    memory_free_bytes=-2.0 * GIBIBYTE,
    usable_bytes=10.5 * GIBIBYTE,
    coverage={"proxy": 0.55, "bytes": 0.30, "roofline": 0.15},
    extrapolated_share=0.55,
)

FULL = Predictions(
    items_in_order=(H100, T4, K80),
    used_gpu="T4",
    notes=("2 of 418 operations were not timed on the host.",),
)
"""Every kind of cell: known and unknown, fitting and not, in use and not, bound by host and by device."""

BARE = Predictions(  # Nothing but iteration times
    items_in_order=(
        MINIMAL,
        with_values(MINIMAL, layout="A10", iteration=replace(MINIMAL.iteration, middle=0.0100), cycle_seconds=0.0100),
    )
)

AT_MOST = Predictions(  # A run that may end earlier, recorded on a GPU that was not asked for
    items_in_order=tuple(with_values(one, at_most=True, validation_is_estimated=True) for one in FULL.values()),
    used_gpu="A100-SXM-80GB",
)


def with_total(prediction: Prediction, seconds: float) -> Prediction:
    """The prediction with another time of the run, its interval as it is."""
    assert prediction.total is not None
    return with_values(prediction, total=replace(prediction.total, middle=seconds))


_RENTED = {
    "H100-SXM-80GB": 2.99,
    "H200-SXM-141GB": 3.79,
    "B200-SXM-180GB": 5.29,
    "A100-SXM-80GB": 1.79,
    "A100-PCIe-40GB": 1.29,
    "L40S": 0.86,
    "A10": 0.75,
    "RTX-PRO-6000-Blackwell": 1.89,
    "L4": 0.71,
    "T4": 0.35,
}

TEN = Predictions(  # As wide and as long as a real table gets
    items_in_order=tuple(
        with_values(
            T4,
            gpu=name,
            measured_seconds=0.0475 if name == "T4" else None,
            usd_per_hour=price,
            cost_usd=3.2 * price,
            offer=f"Provider gpu_1x_{name.lower()} (2026-11-01)",
            coverage={"mlp": 0.65, "wave": 0.20, "roofline": 0.10, "measured": 0.05},
        )
        for name, price in _RENTED.items()
    ),
    used_gpu="T4",
)
