"""`Advice`: the result of `lp.advise`, with predicted gains as values, as lines for a terminal, and as HTML."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from lightning_predict.advice.changes import CHANGES, change_named
from lightning_predict.base.answers import TEXT_WIDTH
from lightning_predict.base.escaping import html_text as escape
from lightning_predict.base.interval import Interval
from lightning_predict.base.ties import NOTICEABLE, ordered
from lightning_predict.reports.format import FEW, duration, gibibytes, listed, milliseconds, usd
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import rank, too_short, with_article

ChangeVerdict = Literal["faster", "noise", "slower", "untested", "no"]
"""Verdict on a change: `faster` or `slower`; `noise` if the gain is within the uncertainty; `untested` if no
measured pair of steps, with and without such a change, validates the gain; `no` if the change does not apply."""


JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | str | float | bool | None  # Value of a JSON document
_JSON_NAMES: Final = {"seconds": "step_seconds", "memory": "memory_bytes"}  # JSON names that differ from attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedChange:
    """One change, evaluated on the GPU that the advice is for."""

    name: str
    words: str  # Code that the user writes to apply the change
    note: str  # Text that describes the side effects
    verdict: ChangeVerdict  # Verdict, see `ChangeVerdict`
    # Throughput with the change relative to throughput without, with its 90 % interval; None without evidence
    gain: Interval[float] | None = None
    simulated_gain: float | None = None  # Simulated gain, with or without evidence; None if the change does not apply
    seconds: float | None = None  # Step time with the change, with the wait for the loader; None if it does not apply
    seconds_saved: float | None = None  # Seconds that the run saves; None without a gain, or if its length is unknown
    usd_saved: float | None = None  # Dollars that the run saves at the GPU's price; None without it or `seconds_saved`
    memory: float | None = None  # Peak memory with the change in bytes; None if unknown
    fits: bool | None = None  # Whether the step with the change fits in memory; None if unknown
    why_not: str | None = None  # Reason why the change does not apply or has no gain; None if the change has a gain
    evidence: str | None = None  # Text that states the evidence for the gain and its accuracy; None without a gain
    gains: Mapping[str, Interval[float]]  # Calibrated gain on each layout, by layout name
    # Simulated gain on each layout to which the change applies, by layout name
    simulated_gains: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, JsonValue]:
        """Return all values as JSON values."""
        return {_JSON_NAMES.get(own.name, own.name): _as_json(getattr(self, own.name)) for own in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Best combination of changes."""

    names: tuple[str, ...]  # Names of the changes, in the order in which they are applied
    gain: Interval[float]  # Throughput with all changes relative to throughput without changes
    seconds: float  # Step time with all changes
    gains: Mapping[str, Interval[float]]  # Gain on each layout to which all changes apply, by layout name
    predictions: Predictions  # Simulated predictions of each GPU with all changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice(Mapping[str, EvaluatedChange]):
    """Predicted gain of each change, by name, and the GPU to rent with these changes.

    Attributes:
        on: Name of the GPU or layout that the gains are for: the GPU in use, otherwise the first requested GPU.
        before: Predictions of each GPU without changes.
        changes: The changes, sorted by gain. Changes that do not apply come last.
        chain: The best combination of changes; None if no gain has evidence.
        allowed: Allowed side effects.
        notes: Further notes.
    """

    on: str
    before: Predictions
    changes: tuple[EvaluatedChange, ...]
    chain: Chain | None
    allowed: frozenset[str]
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> EvaluatedChange:
        for advised in self.changes:
            if advised.name == name:
                return advised
        change_named(name)  # raises an error that lists all names
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (advised.name for advised in self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    def __str__(self) -> str:
        return self.text()

    def text(self, *, verbose: bool = False) -> str:
        """Return the advice as lines of at most 120 characters; `verbose` adds all evidence and reasons."""
        return "\n".join(advice_lines(self, verbose=verbose))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """Return the advice as an HTML fragment that is also a valid page."""
        return advice_html(self)

    def metrics(self) -> dict[str, float]:
        """Return the gains with evidence, by logger key."""
        return {
            f"predict/advice/{advised.name}/gain": advised.gain.middle
            for advised in self.changes
            if advised.gain is not None
        }

    def as_dict(self) -> dict[str, JsonValue]:
        """Return all values as JSON values."""
        chain = self.chain
        return {
            "on": self.on,
            "before": self.before.as_dict(),
            "changes": [advised.as_dict() for advised in self.changes],
            "chain": None
            if chain is None
            else {
                "names": list(chain.names),
                "gain": _as_json(chain.gain),
                "step_seconds": chain.seconds,
                "gains": _as_json(chain.gains),
                "after": chain.predictions.as_dict(),
            },
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """Return all values as JSON text."""
        return json.dumps(self.as_dict(), indent=2)


def _as_json(value: Any) -> JsonValue:
    if isinstance(value, Interval):
        return {"low": value.low, "middle": value.middle, "high": value.high}
    return {name: _as_json(each) for name, each in value.items()} if isinstance(value, Mapping) else value


# --- Text and HTML

NOTHING_GAINS: Final = "No change has a validated gain here."
SLOWER: Final = "Slower here"
UNTESTED: Final = "Worth testing (simulated; under ten pairs)"
ALIKE: Final = "Similar gain"
NOISE: Final = "Gain within the noise"
CLOSED: Final = "Not applicable"
MODULES: Final = "Where it goes"
MODULE_GPUS: Final = 2  # Number of GPUs for which the time by module is shown
HEAD: Final = ("Change one thing", "step", "faster (90 %)", "saves", "price you pay")


def advice_lines(advice: Advice, *, verbose: bool = False) -> Iterator[str]:
    """Yield the advice as lines: changes, the chain, rejected changes (`verbose`: all), modules, the GPU to rent."""
    yield from textwrap.wrap(_heading(advice), TEXT_WIDTH)
    rows = _rows(advice)
    yield ""
    if rows:
        yield from _grid([(" " * 3 + HEAD[0], *HEAD[1:]), *rows])
    else:
        yield NOTHING_GAINS
    for sentence in _full_notes(advice) if verbose else _notes(advice):
        yield from _wrapped(sentence)
    if head := _modules(advice):
        yield ""
        yield from _grid(head)
    rent = list(_rent(advice))
    if rent:
        yield ""
        for line in rent:
            yield from textwrap.wrap(line, TEXT_WIDTH, subsequent_indent="  ")


def short_lines(advice: Advice) -> tuple[str, ...]:
    """Return the advice in at most three lines: the best change, harmful changes, and the GPU to rent."""
    faster, harm = (_with_verdict(advice, verdict) for verdict in ("faster", "slower"))
    if advice.chain is not None and len(advice.chain.names) > 1:
        lines = [f"Change first: {' + '.join(advice.chain.names)}, {_ends(advice.chain.gain, ' as fast')}."]
    elif faster:
        lines = [f"Change first: {faster[0].words}, {_ends(faster[0].gain)} as fast; {faster[0].note}."]
    else:
        untested = listed([change.name for change in _with_verdict(advice, "untested")])
        lines = [NOTHING_GAINS + (f" Worth testing: {untested}." if untested else "")]
    if harm:
        lines.append(f"{SLOWER}: {listed([f'{change.name} {_ends(change.gain)}' for change in harm])}.")
    return (*lines, *list(_rent(advice))[-1:])


def _with_verdict(advice: Advice, verdict: ChangeVerdict) -> list[EvaluatedChange]:
    return [change for change in advice.changes if change.verdict == verdict]


def _heading(advice: Advice) -> str:
    first = advice.before.items_in_order[0]
    wait = f", including {duration(first.cycle_seconds - first.iteration_seconds)} of waits for the loader"
    loading = wait if first.cycle_seconds > 1.005 * first.iteration_seconds else ""
    verdict = first.step.verdict
    bound = "" if verdict is None else f", bound by the {verdict.bound_by}"
    other = (
        f" (host {duration(first.host_seconds)})"
        if verdict is not None and verdict.bound_by == "device"
        else f" (device {duration(first.device_seconds)})"
    )
    full = ""
    if first.fits is False:
        enough = [
            f"{change.name} ({gibibytes(change.memory)} GiB)"
            for change in advice.changes
            if change.fits and change.memory
        ]
        with_it = f"; it would with {' or '.join(enough)}" if enough else ""
        remedy = "`lightning-predict trace memory` shows what saves memory, and sets of changes that fit, if any"
        full = f" It does not fit in the memory of one {first.layout.gpu.name}{with_it}. {remedy}."
    step = f"{duration(first.cycle_seconds)} a step{loading}{bound}{other}"
    return f"{advice.before.heading}. On {advice.on}: {step}.{full}"


def numbered(advice: Advice) -> list[EvaluatedChange]:
    """Return the rows of the table: the best change of each kind, changes with allowed side effects first."""
    best: dict[str, EvaluatedChange] = {}
    for change in _with_verdict(advice, "faster"):
        best.setdefault(CHANGES[change.name].kind, change)
    return sorted(best.values(), key=lambda change: not CHANGES[change.name].side_effects <= advice.allowed)


def _rows(advice: Advice) -> list[tuple[str, ...]]:
    """Return the rows of the table: recommended changes, and their best combination."""
    rows: list[tuple[str, ...]] = [
        (
            f"{number:<2} {change.words}",
            "" if change.seconds is None else duration(change.seconds),
            _ends(change.gain),
            _saves(change.seconds_saved, change.usd_saved),
            change.note,
        )
        for number, change in enumerate(numbered(advice), 1)
    ]
    chain, first = advice.chain, advice.before.items_in_order[0]
    if chain is not None and len(chain.names) > 1:
        share = 1 - 1 / chain.gain.middle
        seconds = None if first.remaining_seconds is None or not first.iterations else share * first.remaining_seconds
        saves = _saves(seconds, None if first.cost_usd is None else share * first.cost_usd)
        rows.append((f"Together: {' + '.join(chain.names)}", duration(chain.seconds), _ends(chain.gain), saves, ""))
    return rows


def _modules(advice: Advice) -> list[tuple[str, ...]]:
    """Return the time of the step by module, on two GPUs; the first row names the columns. Empty if unknown."""
    shown = [one for one in advice.before.items_in_order if one.verdict is not None][:MODULE_GPUS]
    paths = [one.verdict.critical_path if one.verdict is not None else {} for one in shown]
    largest = {name: max(path.get(name, 0.0) for path in paths) for path in paths for name in path}

    def cell(share: float, step_seconds: float) -> str:
        return f"{milliseconds(share * step_seconds)} ms {share:>4.0%}"

    rows = [
        (name, *(cell(path.get(name, 0.0), one.iteration_seconds) for path, one in zip(paths, shown, strict=True)))
        for name, share in largest.items()
        if share >= NOTICEABLE
    ]
    return [(MODULES, *(one.gpu for one in shown)), *rows] if rows else []


def _times(value: float, sign: str = "×") -> str:  # noqa: RUF001 (a times sign is meant)
    return f"{value:.2f}{sign}" if value < 2 else f"{value:.1f}{sign}"


def _ends(gain: Interval[float] | None, unit: str = "") -> str:
    """Format a gain with its interval: `1.43× as fast (1.38-1.47)`."""
    assert gain is not None  # the verdicts faster, slower and noise have a gain
    return f"{_times(gain.middle)}{unit} ({_times(gain.low, '')}–{_times(gain.high, '')})"  # noqa: RUF001


def _saves(seconds: float | None, money: float | None) -> str:
    return "" if seconds is None else duration(seconds) + ("" if money is None else f", {usd(money)}")


def _grid(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _others(advice: Advice) -> dict[str, list[EvaluatedChange]]:
    """Return the changes that have no row, by the head of their note, most important first."""
    shown = numbered(advice)
    return {
        SLOWER: _with_verdict(advice, "slower"),
        UNTESTED: _with_verdict(advice, "untested"),
        ALIKE: [change for change in _with_verdict(advice, "faster") if change not in shown],
        NOISE: _with_verdict(advice, "noise"),
        CLOSED: _with_verdict(advice, "no"),
    }


def _notes(advice: Advice) -> Iterator[str]:
    """Yield the most important notes on changes that have no row."""

    def text(head: str, change: EvaluatedChange) -> str:
        if head == CLOSED or (head == UNTESTED and change.simulated_gain is None):
            return change.name
        if head == UNTESTED and change.simulated_gain is not None:
            return f"{change.name} {_times(change.simulated_gain)}{_elsewhere(change)}"
        return f"{change.name} {_ends(change.gain)}"

    known = [
        f"{head}: {listed([text(head, change) for change in group])}."
        for head, group in _others(advice).items()
        if group
    ]
    yield from known[:FEW]
    if list(_full_notes(advice)) != known:
        yield "verbose adds the evidence, the reasons and all names."


def _full_notes(advice: Advice) -> Iterator[str]:
    """Yield all notes on changes: the evidence for gains, and why other changes have no row."""
    others = _others(advice)
    names: dict[str, list[str]] = {}
    for change in (*numbered(advice), *others[SLOWER]):
        if change.evidence is not None:
            names.setdefault(change.evidence, []).append(change.name)
    yield from (f"Evidence ({', '.join(given)}): {evidence}." for evidence, given in names.items())
    for head in (ALIKE, SLOWER, NOISE):
        if others[head]:
            yield f"{head}: {'; '.join(f'{change.name} {_ends(change.gain)}' for change in others[head])}."
    if others[UNTESTED]:
        yield f"{UNTESTED}: {'; '.join(f'{one.name} ({_simulated(one)})' for one in others[UNTESTED])}."
    reasons: dict[str | None, list[str]] = {}
    for change in others[CLOSED]:
        reasons.setdefault(change.why_not, []).append(change.name)
    if reasons:
        yield f"{CLOSED}: " + "; ".join(f"{', '.join(given)} ({reason})" for reason, given in reasons.items()) + "."


def _simulated(change: EvaluatedChange) -> str:
    if change.simulated_gain is None:
        return f"{change.why_not}"
    on = "".join(f", {_times(value)} on {name}" for name, value in list(change.simulated_gains.items())[1:])
    return f"simulated {_times(change.simulated_gain)}{on}"


def _elsewhere(change: EvaluatedChange) -> str:
    """Return the largest simulated gain on another GPU, if it is clearly larger than on the first."""
    best, gain = max(change.simulated_gains.items(), key=lambda item: item[1], default=("", 0.0))
    return f" ({_times(gain)} on {best})" if gain >= (1 + NOTICEABLE) * (change.simulated_gain or 1.0) else ""


def _rent(advice: Advice) -> Iterator[str]:
    now = _priced(advice.before, None)
    if now is None:
        return
    short = tuple(too_short(rank(advice.before)))
    if short:
        yield from short
        return
    yield f"Rent without changes: {now}."
    if advice.chain is not None:
        then = _priced(advice.before, advice.chain.gains)
        if then is not None:
            yield f"With {' + '.join(advice.chain.names)}: {then}."


def _priced(predictions: Predictions, gains: Mapping[str, Interval[float]] | None) -> str | None:
    """Return a sentence with the three cheapest GPUs on which the step fits; None without prices."""
    costs = []
    for one in predictions.items_in_order:
        told = None if gains is None else gains.get(one.layout.name)
        if one.cost_usd is None or one.remaining_seconds is None or not one.iterations or one.fits is False:
            continue
        factor = 1.0 if told is None else told.middle
        costs.append((one.cost_usd / factor, one.remaining_seconds / factor, one.layout.name))
    if not costs:
        return None
    (cost, seconds, name), *others = ordered(ordered(costs, lambda pair: pair[1]), lambda pair: pair[0])
    beside = ", ".join(f"{other} {usd(dollars)}" for dollars, _, other in others[:2])
    return f"{with_article(name)}, {usd(cost)} in {duration(seconds)}" + (f" ({beside})" if beside else "")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, TEXT_WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def advice_html(advice: Advice) -> str:
    """Return the advice as an HTML fragment: recommended changes, and time by module."""
    rows, modules = _rows(advice), _modules(advice)
    notes, rent = (
        "".join(f"<p>{escape(line)}</p>" for line in lines) for lines in (_full_notes(advice), _rent(advice))
    )
    notes = f"<details><summary>Evidence, and changes that do not apply</summary>{notes}</details>"
    return (
        f"<section><h2>What to change first</h2><p>{escape(_heading(advice))}</p>"
        f"{_html_table((HEAD, *rows)) if rows else f'<p>{NOTHING_GAINS}</p>'}{rent}{notes}</section>"
        f"{f'<section><h2>{MODULES}</h2>{_html_table(modules)}</section>' if modules else ''}"
    )


def _html_table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return f'<div class="scroll"><table><thead><tr>{names}</tr></thead><tbody>{cells}</tbody></table></div>'
