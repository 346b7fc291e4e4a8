"""Watching optimizers and modules through torch's global hooks."""

import threading
from collections.abc import Callable, Sized
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from lightning_predict.record.hooks import ModuleWatch, OptimizerWatch


def hooks_left() -> int:
    """Global hooks that are registered now."""
    registries: list[Sized] = [
        module_hooks._global_forward_pre_hooks,
        module_hooks._global_forward_hooks,
        module_hooks._global_forward_hooks_always_called,
        optimizer_hooks._global_optimizer_pre_hooks,
        optimizer_hooks._global_optimizer_post_hooks,
    ]
    return sum(len(registry) for registry in registries)


def test_optimizer_update_excludes_its_closure() -> None:
    weight = nn.Parameter(torch.ones(2))
    seen: list[bool] = []

    class Spy(torch.optim.SGD):
        def step(self, closure: Callable[[], Any] | None = None) -> Any:
            loss = super().step(closure)
            seen.append(watch.inside)
            return loss

    torch.optim.SGD([nn.Parameter(torch.ones(1))])  # from its first object on, torch hooks the parent's step too
    optimizer = Spy([weight], lr=0.5)
    ended: list[int] = []
    watch = OptimizerWatch(lambda: ended.append(1))

    def closure() -> torch.Tensor:
        seen.append(watch.inside)
        loss = weight.sum()
        loss.backward()
        return loss

    watch.open()
    assert optimizer.step(closure).item() == 2.0  # the closure's result comes through
    optimizer.step(closure=closure)
    optimizer.step()
    watch.close()
    assert seen == [False, True, False, True, True]
    assert watch.inside is False
    assert watch.optimizers == [optimizer]
    assert watch.steps == len(ended) == 3
    assert weight.tolist() == [-1.5, -1.5]  # 1 - 0.5 x (1 + 2 + 2): gradients add up


def test_optimizer_step_inside_a_backward_pass_is_tracked() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    watch = OptimizerWatch()
    seen: list[bool] = []

    def update(parameter: torch.Tensor) -> None:
        handle = optimizer.register_step_pre_hook(lambda *_: None)
        optimizer.step()
        seen.append(watch.inside)
        handle.remove()

    weight.register_post_accumulate_grad_hook(update)
    watch.open()
    weight.sum().backward()
    watch.close()
    assert seen == [False]
    assert watch.steps == 1


def test_other_threads_are_not_tracked() -> None:
    watch = ModuleWatch()
    watch.open()
    thread = threading.Thread(target=lambda: nn.ReLU()(torch.zeros(1)))
    thread.start()
    thread.join()
    watch.close()
    assert watch.roots == []


def test_closing_twice_and_models_that_cannot_list_modules_leave_no_hook() -> None:
    before = hooks_left()
    optimizers, modules = OptimizerWatch(), ModuleWatch()
    optimizers.open()
    modules.open()
    assert hooks_left() > before
    for _ in range(2):
        optimizers.close()
        modules.close()
    assert hooks_left() == before

    class Odd(nn.Linear):
        def named_modules(self, *args: Any, **kwargs: Any) -> Any:
            raise ValueError("not now")

    model, watch = Odd(2, 1), ModuleWatch()
    watch.open()
    assert model(torch.zeros(3, 2)).shape == (3, 1)
    watch.close()
    assert watch.roots == [model]
