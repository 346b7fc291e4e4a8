"""Command line interface, `lightning-predict`: each command is a function whose parameters are the options.

* `running`: `main`, which parses the arguments, runs one command, and prints the result or a one-line error.
* `parsing`: the options, made by cyclopts from the functions' type hints and docstrings.
* `findings`: what `predict` prints and writes.
* `prediction_commands`, `trace_commands`, `script_commands`, `history_commands` and
  `catalogue_commands`: commands that predict or show data. `advice`, `embeddings`, `layout_search`, `own_weights`,
  `planning` and `regression` have a `commands.py` of their own.

Example::

    lightning-predict predict run.json --gpus T4,L4,H100 --iterations 10000 --deadline-hours 8

Importing this package loads neither torch nor numpy. The module of a command is imported when the command runs.
"""

from lightning_predict.cli.running import main

__all__ = ["main"]
