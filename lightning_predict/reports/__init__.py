"""Show predictions: as tables, rankings, figures, HTML, through loggers, and as tasks for SkyPilot.

* `predictions`: the mapping GPU name -> `Prediction` that `predict` returns.
* `format`: numbers as people read them (`3 h 12 min`, `$12.3`); pure.
* `table`: the columns and footnotes, and from them plain text, rich and Markdown tables.
* `ranking`: cheapest, fastest, cheapest within a deadline.
* `html`: the report as one HTML file.
* `figures`: bars with interval (needs the extra `tensorboard`, for matplotlib).
* `loggers`: hands all of it to whatever loggers a Trainer has, or writes a JSON file.
* `sky`: the SkyPilot task that rents the machine.

They import one way: `format` -> `table`, `ranking` -> `predictions` -> the rest. Example::

    print_table(result)
    for warning in log_predictions(trainer.loggers, result, step=trainer.global_step):
        rank_zero_warn(warning)

Nothing here imports torch or Lightning; matplotlib and rich are imported by the functions that draw with them.
"""
