"""What torch does by default on CUDA, by release, and the release of a step.

| what | default | in torch's sources |
|---|---|---|
| `zero_grad` | frees gradients since 2.0, before fills them with zeros | `torch.optim.optimizer`: `zero_grad` |
| `torch.optim` | foreach since 2.0, before one by one; fused only on request | `_default_to_fused_or_foreach` there |
| gradient clipping | foreach since 2.0, before one by one | `torch.nn.utils.clip_grad` |
| `scaled_dot_product_attention` | one kernel since 2.0, before two matmuls and a softmax | `torch.nn.functional` |
| GradScaler | on since 1.6 | `torch.amp.grad_scaler` |
| GELU | float32 under autocast before 1.10 | pull request 59639 |
| softmax, ReLU | the backward pass reads the result; before 1.11 and 1.10 the input | pull requests 65242, 63089 |
| convolutions | write channels last if images or weight are | `aten/src/ATen/native/ConvUtils.h` |

`absent_cuda.py` and `meta_device.py` apply the defaults of the current release to meta tensors. The functions here
return the defaults of the trace's release, or the step's own choices (`Flags.foreach`, `Flags.set_to_none`).
`for_torch_release` converts a step of a current release to an earlier release. Example::

    >>> release_of({"torch": "2.13.0+cpu"})
    (2, 13)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from lightning_predict.base.checked import shown
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.trace import Trace

FOREACH_SINCE: Final = (2, 0)  # First release with foreach optimizers on CUDA and `zero_grad` that frees gradients
MULTI_TENSOR: Final = ("aten::_foreach_", "aten::_fused_")  # Prefixes of operations that update several tensors at once


def release_of(software: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the torch release from the versions of a trace; None if unknown."""
    version = re.match(r"(\d+)\.(\d+)", software.get("torch", ""))
    return None if version is None else (int(version[1]), int(version[2]))


_RELEASE: Final = re.compile(r"\d+\.\d+(\.\d+)?((a|b|rc|\.dev|\.post)\d+)?(\+\S+)?")
"""Pattern of a release as in `torch.__version__`, or of a prefix of such a release."""


def check_release(release: str | None) -> None:
    """Check that a text is a torch release."""
    if release is not None and (not isinstance(release, str) or _RELEASE.fullmatch(release) is None):
        raise InvalidArgumentError(
            f"release={shown(release)} is not a release of torch; give one as text, for example '1.13' or '2.6.0', "
            "or None for the release of the trace."
        )


def updates_one_by_one(trace: Trace) -> bool:
    """Return whether the optimizer launches kernels per tensor on CUDA: by the step's choice, or before torch 2.0."""
    return _is_before_foreach(trace) if trace.flags.foreach is None else not trace.flags.foreach


def frees_gradients(trace: Trace) -> bool:
    """Return whether `zero_grad` frees gradients: by the step's choice, or since torch 2.0."""
    return not _is_before_foreach(trace) if trace.flags.set_to_none is None else trace.flags.set_to_none


def _is_before_foreach(trace: Trace) -> bool:
    """Return whether the optimizer launches kernels for each tensor, as before torch 2.0."""
    release = release_of(trace.software)
    return release is not None and release < FOREACH_SINCE


def for_torch_release(trace: Trace, release: str | None) -> Trace:
    """Return a step as another torch release would run it. A step with measured kernels only gets a note.

    Args:
        trace: Recorded step.
        release: torch release; None keeps the trace's release.
    """
    if release is None:
        return trace
    asked, recorded = release_of({"torch": release}), release_of(trace.software)
    if trace.has_measured_kernels:
        own = trace.software.get("torch", "another release")
        unused = f"release={release!r} is not used: the kernels of this step were measured, under torch {own}."
        return replace(trace, notes=(*trace.notes, unused))
    under = replace(trace, software={**trace.software, "torch": release})
    if asked is None:
        return under
    if asked >= FOREACH_SINCE:
        return under
    from lightning_predict.record import older_releases

    under = replace(under, operations=older_releases.with_attention_written_out(trace.operations))
    under = replace(under, operations=older_releases.with_wide_gelu(under, asked))
    under = replace(under, operations=tuple(older_releases.with_kept_inputs(under.operations, asked)))
    if recorded is not None and recorded < FOREACH_SINCE:
        return under
    if trace.flags.foreach is None:
        under = replace(under, operations=tuple(older_releases.updated_one_by_one(under.operations)))
    return under if frees_gradients(under) else replace(under, operations=older_releases.with_kept_gradients(under))
