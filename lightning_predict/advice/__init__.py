"""Optimization advice: possible changes to a training run (precision, compile, batch size ...) with predicted gains.

A change is a function of a recorded step (`change.py`); each file here defines related changes.
`run/carried_measurements.py` applies the step's measurements to the changed step. `gain_accuracy.py` has the measured
accuracy of predicted gains. `advice.py` ranks the changes: `lp.advise`.
"""
