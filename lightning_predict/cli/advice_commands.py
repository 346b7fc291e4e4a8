"""`advise`: what to change first about a recorded step, and then which GPU to rent.

Example::

    lightning-predict advise step.json.gz --gpus L4,A100-SXM-80GB --iterations 50000
    lightning-predict advise step.json.gz --allow memory          # nothing that changes the numerics
"""

from __future__ import annotations

from pathlib import Path

from lightning_predict.cli.answers import Answer


def advise(
    trace: Path,
    *,
    gpus: str | None = None,
    iterations: int | None = None,
    allow: str = "numerics,memory",
    followed: Path | None = None,
    strategy: str = "ddp",
    usd_per_hour: float | None = None,
    weights: str | None = None,
    output: Path | None = None,
) -> Answer:
    """Say what to change first about a recorded step, what it gains, and which GPU to rent with it.

    A number stands only where measured pairs prove that such gains are foretold; the rest is to be tried.

    Args:
        trace: The recorded step.
        gpus: Names of GPUs or layouts, separated by commas; gains are told for the GPU in use, else for the first.
        iterations: Training steps still to come; without it, what a run would save is left out.
        allow: What changes may ask besides time, of numerics, digits, memory, samples, separated by commas.
        followed: The same step captured on the meta device, where the trace is a GPU's profile: torch.compile needs it.
        strategy: How several GPUs share the work: ddp, zero1, zero2, fsdp, hybrid.
        usd_per_hour: Your own price of every GPU.
        weights: Weights of the models: a folder, a file or an https:// address.
        output: Write to this file instead of printing: .html, .json or .txt.
    """
    from lightning_predict.assumptions import Assumptions
    from lightning_predict.changes.advice import advice_for
    from lightning_predict.distributed.strategy import strategy_of
    from lightning_predict.errors import InvalidArgumentError
    from lightning_predict.gpus import DEFAULT_GPUS
    from lightning_predict.gpus.layouts import layouts_of
    from lightning_predict.tracing.trace import Trace

    if output is not None and output.suffix not in (".html", ".json", ".txt"):
        raise InvalidArgumentError(f"output={str(output)!r} has another ending than .html, .json or .txt; give one.")
    asked = DEFAULT_GPUS if gpus is None else [name.strip() for name in gpus.split(",") if name.strip()]
    assumptions = Assumptions(strategy=strategy_of(strategy), usd_per_hour=usd_per_hour, weights=weights)
    found = advice_for(
        Trace.load(str(trace)),
        layouts_of(asked),
        assumptions,
        iterations=iterations,
        allow=[word.strip() for word in allow.split(",") if word.strip()],
        followed=None if followed is None else Trace.load(str(followed)),
    )
    if output is None:
        return Answer(data=found.as_dict, show=lambda: print(found))
    forms = {".html": found.to_html, ".json": found.to_json, ".txt": found.__str__}
    output.write_text(forms[output.suffix](), encoding="utf-8")
    return Answer(data=lambda: {"written": str(output), **found.as_dict()}, show=lambda: print(f"Written: {output}"))
