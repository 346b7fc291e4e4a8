"""`Predictions`, and what shows them: tables, figures, loggers, files.

* `predictions`: the mapping GPU name -> `Prediction` that `predict` returns.
* `format`: numbers as people read them (`3 h 12 min`, `$12.3`); pure.
* `table`: the list of columns, and from it plain text, rich and Markdown tables.
* `metrics`: the same values as one flat dict of floats, for loggers and experiment tables.
* `figure`: bars with interval (needs the extra `tensorboard`, for matplotlib).
* `loggers`: hands all of it to whatever loggers a Trainer has, or writes a JSON file.

Example::

    print_table(result)
    for warning in log_predictions(trainer.loggers, result, step=trainer.global_step):
        rank_zero_warn(warning)

Nothing here imports torch or Lightning; matplotlib and rich are imported by the functions that draw with them.
"""
