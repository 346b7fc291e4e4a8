"""Optimization advice: possible changes to a training run (precision, compile, batch size ...) with predicted gains.

`changes.py` is the table of changes; each is a function of a recorded step. `run/carried_measurements.py` applies the
step's measurements to the changed step. `gain_accuracy.py` has the measured accuracy of predicted gains. `advice.py`
ranks the changes: `lp.advise`. `what_if.py` predicts a step with one change.
"""
