"""The command line, `lightning-predict`: each command is a function whose type hints are its options.

* `running`: `main`, which parses, runs one command and prints what it answers (or one line of what is wrong).
* `parsing`: the parser, made from the hints and docstrings of the functions.
* `answers`: what a command gives back: JSON values, and the text for people.
* `prediction_commands`, `regression_commands`, `sharding_commands`, `planning_commands`, `catalogue_commands`,
  `weights_commands`: the commands.

Example::

    lightning-predict predict run.json --gpus T4,L4,H100 --iterations 10000 --deadline-hours 8

Importing this loads neither torch nor numpy; a command loads what it needs when it runs.
"""

from lightning_predict.cli.running import main

__all__ = ["main"]
