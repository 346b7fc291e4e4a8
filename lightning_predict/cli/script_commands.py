"""Command `run`: runs an unmodified training script with predictions.

Example::

    lightning-predict run --gpus T4,L4 train.py --epochs 3
    lightning-predict run --usd 5 --usd-per-hour 0.05 train.py
    lightning-predict run torchrun --nproc-per-node 2 train.py
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lightning_predict.base.answers import CommandAnswer
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.files import PREDICTED_VARIABLE, STOPPED_VARIABLE
from lightning_predict.registration import GPUS_VARIABLE, PRICE_VARIABLE, SEEN_VARIABLE, SWITCH_VARIABLE, USD_VARIABLE

HIGHEST_EXIT_CODE: Final = 255

_OWN: Final = (
    *("SIGKILL", "SIGSTOP", "SIGCHLD", "SIGPIPE", "SIGTTIN", "SIGTTOU"),
    *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"),
)
"""Signals that are not forwarded to the script: those that no program can handle, and those about this process. SIGXFSZ
is not either, because Python ignores it from its start, as SIGPIPE."""

_FROM_TERMINAL: Final = ("SIGINT", "SIGQUIT", "SIGTSTP", "SIGWINCH", "SIGCONT")
"""Signals that a terminal sends to all processes in the foreground, so that the script has them already."""


def run(
    script: str,
    /,
    *arguments: str,
    gpus: str | None = None,
    usd: float | None = None,
    usd_per_hour: float | None = None,
    exit_code: int = 0,
) -> CommandAnswer:
    """Run an unmodified training script, with predictions for its Lightning Trainer.

    Options of this command come before the script; everything after it belongs to the script. The exit code is the
    script's.

    Args:
        script: A Python script, or a program that starts one, such as torchrun.
        arguments: Arguments of the script.
        gpus: all, datacenter or consumer (GPUs with a current price), or names of GPUs or layouts (8xL4, 2x8xH100),
            separated by commas (default: all).
        usd: Maximum dollars of the run. A run that would surely cost more stops with a checkpoint.
        usd_per_hour: With --usd, your price of the machine in use (default: the listed price of its GPU).
        exit_code: Exit code if a budget ended a fit and the script itself exits with 0, for example 75.
    """
    if not 0 <= exit_code <= HIGHEST_EXIT_CODE:
        raise InvalidArgumentError(f"--exit-code {exit_code} is not an exit code; expected 0 to {HIGHEST_EXIT_CODE}.")

    command = [*_program(script), *arguments]
    variables = _variables(gpus, usd, usd_per_hour)
    with tempfile.TemporaryDirectory() as folder:
        seen, made, stopped = (Path(folder, name) for name in ("seen", "made", "stopped"))
        files = {SEEN_VARIABLE: str(seen), PREDICTED_VARIABLE: str(made), STOPPED_VARIABLE: str(stopped)}
        code = _exit_code(command, {**os.environ, **variables, **files})
        has_trainer, predicted = seen.exists(), made.exists()
        code = exit_code if code == 0 and stopped.exists() else code
    if not has_trainer:
        print(
            f"lightning-predict: {script} created no Lightning Trainer, so nothing was predicted. Use lp.watch for "
            "your own loop, or RuntimePredictorCallback for Hugging Face's Trainer.",
            file=sys.stderr,
        )
    return CommandAnswer(
        data=lambda: {"command": command, "exit_code": code, "predicted": predicted},
        show=lambda: None,  # the script has already printed its output
        exit_code=code,
    )


def _program(script: str) -> list[str]:
    """Return the start of the command: Python and the script, or the path of an installed program."""
    if script.endswith(".py"):
        if not Path(script).is_file():
            raise InvalidArgumentError(f"{script} is not a file; expected a Python script, seen from {Path.cwd()}.")
        return [sys.executable, script]
    program = shutil.which(script)
    if program is None:
        raise InvalidArgumentError(
            f"{script!r} is not a Python script (*.py) or an installed program; give one, followed by its arguments."
        )
    return [program]


def _variables(gpus: str | None, usd: float | None, usd_per_hour: float | None) -> dict[str, str]:
    """Validate the options and convert them to environment variables."""
    from lightning_predict.cost.prediction import check_price
    from lightning_predict.cost.priced_gpus import layouts_to_predict

    if usd is not None and not usd > 0:
        raise InvalidArgumentError(f"usd={usd:g} is no budget; expected US dollars above 0.")
    if usd is None and usd_per_hour is not None:
        raise InvalidArgumentError("--usd-per-hour is the price for a budget; give the budget with --usd.")
    check_price(usd_per_hour)
    if gpus is not None:
        layouts_to_predict([name.strip() for name in gpus.split(",") if name.strip()])
    given = {GPUS_VARIABLE: gpus, USD_VARIABLE: usd, PRICE_VARIABLE: usd_per_hour}
    return {SWITCH_VARIABLE: "1"} | {name: str(value) for name, value in given.items() if value is not None}


def _exit_code(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a process to its end, forward signals, and return its exit code; after signal N, the exit code is 128 + N."""
    # Slurm and the terminal (Ctrl-C) send their signals to the script, too. Forwarding would deliver the signal twice,
    # so this process only waits for the script to end.
    is_forwarded, started, early = _parent() != "slurmstepd", list[subprocess.Popen[bytes]](), list[int]()

    def forward(number: int, _: object) -> None:
        if is_forwarded and not (number in terminal and _is_in_foreground()):
            if started:
                started[0].send_signal(number)
            else:
                early.append(number)
        if number == getattr(signal, "SIGTSTP", None):
            os.kill(os.getpid(), signal.SIGSTOP)  # until SIGCONT, as the script

    terminal, own = ({getattr(signal, name, None) for name in names} for names in (_FROM_TERMINAL, _OWN))
    # `nohup` ignores SIGHUP, and a program may be started with other ignored signals; faulthandler's handler is None.
    kept = (signal.SIG_IGN, None)
    heard = [number for number in signal.valid_signals() if number not in own and signal.getsignal(number) not in kept]
    before = {number: signal.signal(number, forward) for number in heard}
    process = subprocess.Popen(command, env=environment)
    started.append(process)
    for number in early:  # this process has stopped and gone on already, and must not stop again
        process.send_signal(number)
    try:
        # With a time limit, `wait` looks every 50 ms. Without one, it blocks in a system call, and a signal that came
        # just before the call would be handled only after the script has ended.
        code = process.wait(timeout=math.inf)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


def _is_in_foreground() -> bool:
    """Return whether this process is in the foreground of a terminal, which sends Ctrl-C to the script, too."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    except (OSError, AttributeError):  # without a terminal, or on Windows
        return sys.platform == "win32"


def _parent() -> str:
    """Return the name of the parent process; empty if unknown."""
    try:
        return Path(f"/proc/{os.getppid()}/comm").read_text().strip()
    except OSError:
        return ""
