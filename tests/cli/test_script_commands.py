"""`run`: a script as it is, with predictions, its own arguments and its own exit code."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lightning_predict.cli import script_commands
from lightning_predict.cli.parsing import parsed
from tests.cli.conftest import Run, arguments
from tests.processes import ROOT

TRAIN = """
import sys
from pathlib import Path
from tests.callbacks.small import Small

small = Small("lightning.pytorch")
trainer = small.trainer(Path(sys.argv[1]), max_epochs=1)
trainer.fit(small.model(), small.loader(8))
print("callbacks:", *(type(callback).__name__ for callback in trainer.callbacks))
print("arguments:", *sys.argv[2:])
"""


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_arguments_after_the_script_and_its_exit_code_are_its_own(run: Run, tmp_path: Path) -> None:
    words = ["--gpus=T4", "--usd_per_hour", "2", "--usd", "1", "train.py", "--my_flag", "3", "--json", "--", "--usd"]
    call = parsed("run", ["run", *words])
    assert call is not None
    given = call.arguments
    assert (given["script"], given["gpus"], given["usd"], given["usd_per_hour"]) == ("train.py", "T4", 1.0, 2.0)
    assert given["arguments"] == ("--my_flag", "3", "--json", "--", "--usd")
    assert not call.as_json
    assert arguments("run", "train.py")["arguments"] == ()
    script = tmp_path / "fails.py"
    script.write_text("import sys; sys.exit(3)")
    ran = run("run", script)
    assert ran.code == 3
    assert f"{script} created no Lightning Trainer, so nothing was predicted. Use lp.watch for" in ran.err
    killed = tmp_path / "killed.py"
    killed.write_text("import os; os.kill(os.getpid(), 9)")
    assert run("run", killed).code == 128 + signal.SIGKILL
    assert run("run", "true").code == 0  # a program of this name
    assert run("run", "--json", "true").json["exit_code"] == 0


def test_unmodified_script_is_predicted(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    asked = ("--gpus", "T4,L4", "--usd", "5", "--usd-per-hour", "0.05")
    command = (*asked, str(script), str(tmp_path / "out"), "--batch_size", "8")
    ran = subprocess.run(
        [sys.executable, "-m", "lightning_predict.cli", "run", *command], capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search("callbacks: .*RuntimePredictor CostBudget", ran.stdout)
    assert "arguments: --batch_size 8" in ran.stdout
    rows = [line.split()[0] for line in ran.stdout.splitlines() if line.startswith(("T4 ", "L4 ", "this"))]
    assert rows == ["this", "T4", "L4"]
    assert "nothing was predicted" not in ran.stderr


BREAKS = """
from unittest.mock import patch
from lightning_predict.record.session import CaptureSession
patch.object(CaptureSession, "start", side_effect=RuntimeError("broken")).start()
"""


@pytest.mark.parametrize("breaks", [False, True])
def test_json_says_whether_a_prediction_was_made(tmp_path: Path, breaks: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(BREAKS * breaks + TRAIN)
    command = ("run", "--gpus", "T4", "--json", str(script), str(tmp_path / "out"))
    environment = {name: value for name, value in os.environ.items() if name != "LIGHTNING_PREDICT_STRICT"}
    ran = subprocess.run(
        [sys.executable, "-m", "lightning_predict.cli", *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout[ran.stdout.rindex("\n{") :])["predicted"] is not breaks
    assert ("broken" in ran.stderr + ran.stdout) is breaks


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["trian.py"], "trian.py is not a file; expected a Python script, seen from "),
        (["no-such-program"], "'no-such-program' is not a Python script (*.py) or an installed program"),
        (["--gpus", "T5", "true"], "'T5' is not a GPU of the catalogue."),
        (["--usd", "-1", "true"], "--usd -1 is no budget; expected US dollars above 0."),
        (["--usd-per-hour", "1", "true"], "--usd-per-hour is the price for a budget; give the budget with --usd."),
        ([], 'Command "run" parameter SCRIPT requires an argument.'),
    ],
)
def test_invalid_options_are_rejected_before_script_starts(words: list[str], problem: str, run: Run) -> None:
    ran = run("run", *words)
    assert ran.code == 2
    assert ran.err.startswith(f"lightning-predict: error: {problem}")


@pytest.mark.parametrize(
    "name",
    [
        *("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGQUIT", "SIGALRM", "SIGXCPU", "SIGTSTP", "SIGCONT"),
        "SIGABRT",
    ],
)
def test_signal_is_forwarded_to_script(name: str, tmp_path: Path) -> None:
    # Signals of a cluster: to end, to save a checkpoint and be requeued. The command died of them, and the script ran
    # on.
    script = tmp_path / "waits.py"
    script.write_text(
        f"import os, signal, sys, time\ndef heard(*_):\n    os.write(1, b'heard\\n')\n    sys.exit(7)\n"
        f"signal.signal(signal.{name}, heard)\nprint('ready', flush=True)\ntime.sleep(60)"
    )
    command = [sys.executable, "-m", "lightning_predict.cli", "run", str(script)]
    number = getattr(signal, name)
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ),
        start_new_session=True,  # without a terminal, which would send some signals to the script itself
        # The tests themselves may run under nohup, which ignores SIGHUP in all children.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        if name == "SIGTSTP":  # the command stops, too
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
            # A SIGCONT takes back a SIGTSTP that the script has not seen yet.
            assert process.stdout.readline() == b"heard\n"
            process.send_signal(signal.SIGCONT)
        assert process.wait() == 7


STARTS_LATE = """
class Late(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        time.sleep(1)  # the signals come here, before the command knows the script
subprocess.Popen = Late
"""
WAITS_BLOCKED = """
real = os.waitpid
def blocked(*words):  # a signal comes after the interpreter looked for signals, before the system call
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        return real(*words)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
os.waitpid = blocked
"""


@contextmanager
def command_with(change: str, script: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the command in a Python that `change` has prepared, and wait until its script says that it is ready."""
    code = f"import os, signal, subprocess, sys, time\n{change}\nfrom lightning_predict.cli import script_commands\n"
    code += f"sys.exit(script_commands._exit_code([sys.executable, {str(script)!r}], dict(os.environ)))"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_command_that_is_stopped_at_its_start_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import sys, time\nprint('ready', flush=True)\ntime.sleep(2)\nsys.exit(7)")
    with command_with(STARTS_LATE, script) as process:
        process.send_signal(signal.SIGTSTP)
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        process.send_signal(signal.SIGCONT)
        assert process.wait(timeout=20) == 7


def test_signal_just_before_the_command_waits_is_forwarded(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(
        "import signal, sys, time\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    with command_with(WAITS_BLOCKED, script) as process:
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=20) == 7


def test_signals_of_slurm_reach_the_script_and_the_documented_lists_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "howto" / "budget.md").read_text(encoding="utf-8")
    kept = page.partition("Not forwarded are")[2].partition("All other commands")[0]
    assert set(re.findall(r"SIG[A-Z]+", kept)) == {*script_commands._OWN, "SIGXFSZ"}
    # Twice the same signal would requeue a job twice.
    monkeypatch.setattr(script_commands, "_parent", lambda: "slurmstepd")
    script = tmp_path / "signals_its_parent.py"
    script.write_text("import os, signal, time\nos.kill(os.getppid(), signal.SIGUSR1)\ntime.sleep(0.5)")
    assert script_commands._exit_code([sys.executable, str(script)], dict(os.environ)) == 0
    monkeypatch.setattr(script_commands, "_parent", lambda: "bash")
    assert script_commands._exit_code([sys.executable, str(script)], dict(os.environ)) == 128 + signal.SIGUSR1


def test_budget_stop_has_an_exit_code(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    stopped = ("--usd", "1e-9", "--usd-per-hour", "1")
    assert run("run", *stopped, script, tmp_path / "one").code == 0
    assert run("run", "--exit-code", "75", *stopped, script, tmp_path / "two").code == 75
    assert run("run", "--exit-code", "75", "--usd", "1", "--usd-per-hour", "1", script, tmp_path / "three").code == 0
    refused = run("run", "--exit-code", "300", "true")
    assert (refused.code, refused.err) == (
        2,
        "lightning-predict: error: --exit-code 300 is not an exit code; expected 0 to 255.\n",
    )
