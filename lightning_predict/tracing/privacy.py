"""A Trace without names: what may leave the house.

Shapes, dtypes, kernels and times stay, since predictions need them; names of modules and parameters become numbers, and
notes, which may hold paths, go. Example::

    >>> from lightning_predict.tracing.trace import Operation, Trace
    >>> step = Operation(name="aten::mm", phase="forward", module="secret.layer")
    >>> trace = Trace(operations=(step, step), device="cpu", recorder="dispatch", notes=("/home/me/model.py",))
    >>> hidden = anonymised(trace)
    >>> hidden.operations[0].module, hidden.notes
    ('module_0', ())
"""

from __future__ import annotations

from dataclasses import replace

from lightning_predict.tracing.trace import Trace


def anonymised(trace: Trace, *, keep_modules: bool = False) -> Trace:
    """Give the trace without the names of parameters, without notes, and without those of modules unless they are kept.

    Equal modules keep equal numbers, in the order of their first call. Custom operators keep their qualified name, by
    which kernels are told apart.

    Args:
        trace: The trace to hide.
        keep_modules: Leave the modules' names.
    """
    numbers: dict[str, str] = {}

    def hidden(module: str | None) -> str | None:
        if module is None or keep_modules:
            return module
        return numbers.setdefault(module, f"module_{len(numbers)}")

    def without_names(step: Trace) -> Trace:
        return replace(
            step,
            operations=tuple(replace(operation, module=hidden(operation.module)) for operation in step.operations),
            parameters=tuple(
                replace(parameter, name=f"parameter_{index}") for index, parameter in enumerate(step.parameters)
            ),
            notes=(),
        )

    return trace.changed(without_names)
