"""`FabricPredictor`: predictions and a budget for a training loop of Lightning Fabric.

Example::

    predictor = FabricPredictor(total_steps=10_000, usd=5.0, gpus=["L4", "H100-SXM-80GB"])
    fabric = Fabric(callbacks=[predictor])
    model, optimizer = fabric.setup(model, optimizer)
    with predictor:
        for batch in predictor.batches(loader):
            ...                               # fabric.backward(loss), optimizer.step()
    predictor.run.outcome

`FabricPredictor` forwards events to the object that `lp.watch` returns. Fabric reports optimizer steps, so gradient
accumulation and several optimizers are counted correctly. The loader's batches mark the start and end of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from lightning_predict.base.errors import CaptureError, InvalidArgumentError
from lightning_predict.base.guard import log_exceptions, log_warning
from lightning_predict.observe.meters import QUANTITIES
from lightning_predict.observe.watched_loop import WatchedRun, watch

Batch = TypeVar("Batch")


class FabricPredictor:
    """Fabric callback that predicts the rest of a training loop and enforces a budget.

    Args:
        **options: Arguments of `lp.watch`, except `model`, `optimizers` and `device`, which Fabric provides.

    Attributes:
        run: The result of `lp.watch`; None before `fabric.setup`, and on ranks other than zero.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        watch(**options)  # rejects invalid options early
        self.run: WatchedRun | None = None
        self._is_set_up = self._has_stepped = False

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Start watching when the first module is set up.

        Raises:
            InvalidArgumentError: A budget is set and there are several processes. Only one of them would stop.
        """
        if self._is_set_up:
            return
        self._is_set_up = True
        limits = [name for name in (*QUANTITIES, "deadline") if self._options.get(name) is not None]
        if fabric.world_size > 1 and limits:
            raise InvalidArgumentError(
                f"FabricPredictor({', '.join(limits)}=...) got {fabric.world_size} processes, but only the first "
                "would stop. Leave the budget out, or use a Trainer with CostBudget, whose ranks stop together."
            )
        if fabric.is_global_zero:
            self._begins(fabric, module)

    @log_exceptions
    def _begins(self, fabric: Any, module: Any) -> None:
        self.run = watch(**self._options, model=getattr(module, "module", module), device=fabric.device)
        self.run.session.loop.world_size = fabric.world_size

    def give_up(self, error: Exception) -> None:
        """Report the error, and stop predicting and checking the budget; the loop continues."""
        if self.run is not None:
            self.run.give_up(error)
        else:
            log_warning(f"FabricPredictor is off; the loop continues: {type(error).__name__}: {error}")

    @log_exceptions
    def on_after_optimizer_step(self, strategy: Any, optimizer: Any) -> None:
        """Mark the current step as having updated the parameters."""
        self._has_stepped = True
        if self.run is not None:
            self.run.add_optimizer(optimizer)

    def __enter__(self) -> FabricPredictor:
        if not self._is_set_up:
            raise CaptureError(
                "FabricPredictor has no module; expected Fabric(callbacks=[predictor]) and fabric.setup(module) before "
                "the loop."
            )
        if self.run is not None:
            self.run.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.run is not None:
            self.run.__exit__(kind, error, where)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield a loader's batches until the loader ends or the budget is exceeded; call this once per epoch."""
        run = self.run
        if run is not None and run.should_stop:
            return  # the budget was exceeded in the previous epoch
        for batch in loader if run is None else run.batches(loader):
            yield batch
            if run is not None and self._has_stepped:
                self._has_stepped = False
                run.step()
                if run.should_stop:
                    return
