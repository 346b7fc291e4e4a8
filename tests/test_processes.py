"""A forked process is as one of its own: arguments, folder, environment, streams, status."""

from pathlib import Path

from tests.processes import run


def test_code_script_and_module_run_as_the_main_one_in_their_folder(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), sys.argv[1:], os.environ['WORD'], 'torch' in sys.modules, __name__)"
    ran = run(code, "a", "b", variables={"WORD": "x"}, folder=tmp_path)
    assert ran.stdout == f"{tmp_path} ['a', 'b'] x True __main__\n", ran.stderr
    assert (ran.returncode, ran.stderr) == (0, "")
    (tmp_path / "beside.py").write_text("word = 'beside'\n")
    (tmp_path / "script.py").write_text("import sys, beside\nprint(__name__, sys.argv[1], beside.word)\n")
    assert run(tmp_path / "script.py", "word").stdout == "__main__ word beside\n"
    assert run("-m", "lightning_predict.cli", "gpus", "T4").stdout.startswith("T4")


def test_failed_and_hanging_processes_report_their_status() -> None:
    ran = run("import sys; print('out'); print('words', file=sys.stderr); sys.exit(3)")
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "out\n", "words\n")
    ran = run("1 / 0")
    assert ran.returncode == 1
    assert "ZeroDivisionError" in ran.stderr
    ran = run("import time; time.sleep(60)", seconds=0.5)
    assert ran.returncode is not None
    assert ran.returncode < 0
