"""The Trainer's strategy in our words, so that layouts are predicted as the run would share them.

Example::

    strategy_of_trainer(Trainer(strategy="fsdp"))  # Strategy(data="fsdp")
"""

from __future__ import annotations

from typing import Any, Final

from lightning_predict.scaling.strategy import DataStrategy, Strategy

_BY_CLASS: Final[dict[str, DataStrategy]] = {"FSDPStrategy": "fsdp", "ModelParallelStrategy": "fsdp"}
"""By class name, as the classes of both packages are called alike and some cannot be imported without an extra."""

_ZERO_STAGES: Final[dict[int, DataStrategy]] = {0: "ddp", 1: "zero1", 2: "zero2", 3: "fsdp"}


def strategy_of_trainer(trainer: Any) -> Strategy:
    """What the Trainer would do on several GPUs; DDP where it trains on one.

    Args:
        trainer: The Trainer that is fitting.
    """
    strategy = trainer.strategy
    names = [parent.__name__ for parent in type(strategy).__mro__]
    if "DeepSpeedStrategy" in names:
        stage = (getattr(strategy, "config", None) or {}).get("zero_optimization", {}).get("stage", 2)
        return Strategy(data=_ZERO_STAGES.get(stage, "zero2"))
    for name, data in _BY_CLASS.items():
        if name in names:
            return Strategy(data="hybrid" if _is_hybrid(strategy) else data, tensor=_degree(strategy))
    options = getattr(strategy, "_ddp_kwargs", {})
    return Strategy(bucket_cap_mb=options.get("bucket_cap_mb") or Strategy().bucket_cap_mb)


def _is_hybrid(strategy: Any) -> bool:
    sharding = getattr(strategy, "sharding_strategy", None)
    return "HYBRID" in str(getattr(sharding, "name", sharding)).upper()


def _degree(strategy: Any) -> int:
    """GPUs that share each layer, of a strategy that has tensor parallelism."""
    degree = getattr(strategy, "_tensor_parallel_size", 1)
    return degree if isinstance(degree, int) else 1
