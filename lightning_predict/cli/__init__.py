"""Command line interface, `lightning-predict`: each command is a function whose type hints are its options.

* `running`: `main`, which parses the arguments, runs one command and prints its answer (or an error in one line).
* `parsing`: the parser, made from the type hints and docstrings of the functions.
* `answers`: the result of a command: JSON values, and text for people.
* `prediction_commands`, `trace_commands`, `script_commands`, `history_commands`, `catalogue_commands` and
  `cache_commands`: the commands of the core; those of extensions are in `extensions/*/commands.py`.

Example::

    lightning-predict predict run.json --gpus T4,L4,H100 --iterations 10000 --deadline-hours 8

Importing this loads neither torch nor numpy; a command imports its dependencies when it runs.
"""

from lightning_predict.cli.running import main

__all__ = ["main"]
