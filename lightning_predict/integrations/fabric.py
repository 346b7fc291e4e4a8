"""`FabricPredictor`: predictions, a budget and an outcome for a loop of Lightning's Fabric.

Example::

    predictor = FabricPredictor(total_steps=10_000, usd=5.0, gpus=["L4", "H100-SXM-80GB"])
    fabric = Fabric(callbacks=[predictor])
    model, optimizer = fabric.setup(model, optimizer)
    with predictor:
        for batch in predictor.batches(loader):
            ...                               # fabric.backward(loss), optimizer.step()
    predictor.run.outcome

It is nothing but events into the same object that `lp.watch` returns: Fabric tells of updates, so that accumulation and
several optimizers are counted as they are, and the loader's batches tell when a step begins and ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar, final

from lightning_predict.errors import CaptureError, InvalidArgumentError
from lightning_predict.fit.watched_loop import WatchedRun, watch
from lightning_predict.guard import log_sentence, never_raises

Batch = TypeVar("Batch")


@final
class FabricPredictor:
    """Watch a loop of Fabric: give it to `Fabric(callbacks=...)`, and loop over its `batches` in a `with` statement.

    Args:
        **options: Those of `lp.watch` apart from `model`, `optimizers` and `device`, which Fabric tells.

    Attributes:
        run: What is known of the loop, as `lp.watch` has it; None before `fabric.setup`, and on other ranks than zero.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        watch(**options)  # refuses what cannot work, at once
        self.run: WatchedRun | None = None
        self._is_set_up = self._has_stepped = False

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Take the first module that is set up for the one that is trained.

        Raises:
            InvalidArgumentError: A budget of several processes, of which one alone would stop.
        """
        if self._is_set_up:
            return
        self._is_set_up = True
        limits = [name for name in ("usd", "hours") if self._options.get(name) is not None]
        if fabric.world_size > 1 and limits:
            raise InvalidArgumentError(
                f"FabricPredictor({', '.join(limits)}=...) got {fabric.world_size} processes, of which only the first "
                "would stop; leave the budget out, or train with a Trainer and CostBudget, whose ranks stop together."
            )
        if fabric.is_global_zero:
            self._begins(fabric, module)

    @never_raises
    def _begins(self, fabric: Any, module: Any) -> None:
        """Watch the loop that trains a module."""
        run = watch(**self._options, model=getattr(module, "module", module), device=fabric.device)
        run.world_size = fabric.world_size
        self.run = run

    def give_up(self, error: Exception) -> None:
        """Predict nothing more and keep no budget: the loop goes on as without this."""
        if self.run is not None:
            self.run.give_up(error)
        else:
            log_sentence(f"FabricPredictor predicts nothing, and the loop goes on: {type(error).__name__}: {error}")

    @never_raises
    def on_after_optimizer_step(self, strategy: Any, optimizer: Any) -> None:
        """Note that the step under way has made an update."""
        self._has_stepped = True
        if self.run is not None and optimizer not in self.run.optimizers:
            self.run.optimizers = (*self.run.optimizers, optimizer)

    def __enter__(self) -> FabricPredictor:
        if not self._is_set_up:
            raise CaptureError(
                "FabricPredictor was told of no module; expected Fabric(callbacks=[predictor]) and "
                "fabric.setup(module) before the loop."
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
        """Yield a loader's batches until it, or the budget, is at its end; call it once an epoch."""
        run = self.run
        if run is not None and run.should_stop:
            return  # in the epoch before
        for batch in loader if run is None else run.batches(loader):
            yield batch
            if run is not None and self._has_stepped:
                self._has_stepped = False
                run.step()
                if run.should_stop:
                    return
