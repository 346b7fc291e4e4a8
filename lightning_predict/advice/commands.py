"""Command `advise`: the most useful changes of a recorded training step, and the GPU to rent with them.

Example::

    lightning-predict advise step.json.gz --gpus L4,A100-SXM-80GB --iterations 50000
    lightning-predict advise step.json.gz --allow memory          # nothing that changes the numerics
    lightning-predict advise step.json.gz --try 1 --script train.py:make_step
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lightning_predict.base.answers import CommandAnswer
from lightning_predict.base.model_options import NO_OPTIONS, ModelOptions

if TYPE_CHECKING:
    from lightning_predict.advice.advice_text import Advice
    from lightning_predict.advice.measured_change import ChangeMeasurement, MakeStep
    from lightning_predict.record.trace import Trace


def advise(
    source: str,
    /,
    *,
    gpus: str = "all",
    iterations: int | None = None,
    allow: str = "numerics,memory",
    followed: Path | None = None,
    strategy: str = "ddp",
    kernels: str | None = None,
    usd_per_hour: str | None = None,
    profile: Path | None = None,
    try_: str | None = None,
    script: str | None = None,
    model: ModelOptions = NO_OPTIONS,
    verbose: bool = False,
    output: Path | None = None,
) -> CommandAnswer:
    """Recommend changes of a recorded step with their gains, and the GPU to rent with these changes.

    A gain is a number only if measured pairs validate such predictions; other changes are listed as worth testing.

    Args:
        source: A recorded step, or a model by name, as for `predict`.
        gpus: all, datacenter or consumer (the best are used), or names of GPUs or layouts, separated by commas.
            Gains are for the GPU in use, otherwise for the first of these.
        iterations: Remaining training steps, to show the savings of a run.
        allow: Side effects that changes may have (numerics, digits, memory, samples), separated by commas.
        followed: The same step captured on the meta device, if the trace is a profile of a GPU. torch.compile needs it.
        strategy: How several GPUs share the work: ddp, zero1, zero2, fsdp, hybrid.
        kernels: What the job runs instead of PyTorch's eager kernels, as for predict; changes come on top of these.
        usd_per_hour: Your own price of one GPU per hour, for all GPUs or by name (L4=0.5,H100=2).
        profile: TOML file with the machines, links, prices and other assumptions.
        try_: Test this change, by its number in the table or its name, for 20 steps on this machine, and print the
            measured gain. Needs --script.
        script: FILE:FUNCTION, a function that makes a training step from a batch size, such as train.py:make_step.
        model: Options of a model by name.
        verbose: Also print the evidence for each gain, and why other changes do not apply.
        output: Write to this file instead of printing: .html, .json or .txt.
    """
    from lightning_predict.advice.advice import advice_for
    from lightning_predict.base.errors import InvalidArgumentError
    from lightning_predict.cost.priced_gpus import layouts_to_predict
    from lightning_predict.layouts.strategy import parse_strategy
    from lightning_predict.machine_profile import parse_prices, read_machine_profile
    from lightning_predict.record.sources import step_of_source
    from lightning_predict.record.trace import Trace

    if output is not None and output.suffix not in (".html", ".json", ".txt"):
        raise InvalidArgumentError(f"output={str(output)!r} has another ending than .html, .json or .txt; give one.")
    told = read_machine_profile(profile)
    prices = told.prices(parse_prices(usd_per_hour))
    names = [name.strip() for name in gpus.split(",") if name.strip()]
    layouts = layouts_to_predict(names, offers=prices.offers, usd_per_hour=prices.usd_per_hour)
    assumptions = told.assumptions(prices, strategy=parse_strategy(strategy), kernels=kernels or ())
    if (try_ is None) != (script is None):
        raise InvalidArgumentError("Give --try and --script together: what to try, and the function that makes a step.")
    function = None if script is None else _function(script)
    step = step_of_source(source, model, **told.model).trace
    advice = advice_for(
        step,
        layouts,
        assumptions,
        iterations=iterations,
        allow=[word.strip() for word in allow.split(",") if word.strip()],
        followed=None if followed is None else Trace.load(str(followed)),
    )
    tried = None if try_ is None or function is None else _tried(try_, function, advice, step)
    more = {} if tried is None else {"tried": tried.as_dict()}
    if output is None:
        text = advice.text(verbose=verbose)
        lines = [text] if tried is None else [text, "", f"Tried: {tried}"]
        return CommandAnswer(data=lambda: advice.as_dict() | more, show=lambda: print(*lines, sep="\n"))
    full = partial(advice.text, verbose=True)
    forms: dict[str, Callable[[], str]] = {".html": advice.to_html, ".json": advice.to_json, ".txt": full}
    output.write_text(forms[output.suffix](), encoding="utf-8")
    written = [f"Written: {output}"] if tried is None else [f"Tried: {tried}", f"Written: {output}"]
    return CommandAnswer(
        data=lambda: {"written": str(output), **advice.as_dict(), **more}, show=lambda: print(*written, sep="\n")
    )


def _tried(asked: str, function: MakeStep, advice: Advice, trace: Trace) -> ChangeMeasurement:
    """Measure the gain of a change on this machine, with the batch size of the recorded step."""
    from lightning_predict.advice.advice_text import numbered
    from lightning_predict.advice.changes import change_named
    from lightning_predict.advice.measured_change import try_change
    from lightning_predict.base.errors import InvalidArgumentError

    rows = numbered(advice)
    if asked.isdigit() and not 1 <= int(asked) <= len(rows):
        raise InvalidArgumentError(f"try_={asked} is no row of the table, which has {len(rows)}; give a change's name.")
    name = rows[int(asked) - 1].name if asked.isdigit() else change_named(asked).name
    if trace.samples is None:
        raise InvalidArgumentError("The recording does not say how many samples a step holds; capture() takes them.")
    return try_change(name, function, batch_size=trace.samples_per_batch)


def _function(script: str) -> MakeStep:
    """Load a function from a file, for example `train.py:make_step`."""
    import importlib.util
    import sys

    from lightning_predict.base.errors import InvalidArgumentError

    file, _, name = script.rpartition(":")
    path = Path(file)
    if not name.isidentifier() or path.suffix != ".py" or not path.is_file():
        raise InvalidArgumentError(f"script={script!r} names no function of a file; write it as train.py:make_step.")
    sys.path.insert(0, str(path.parent.resolve()))  # the script may import modules from its folder
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidArgumentError(f"script={script!r}: {path.name} has no function {name!r}.")
    return cast("MakeStep", function)
