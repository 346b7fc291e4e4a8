"""Optimization advice: possible changes of a training (precision, compile, batch size ...) with predicted gains.

Each change has a file here, and is a function of a recorded step. `change.py` defines a change, and `measured.py`
applies the step's measurements to the changed step. `gain_accuracy.py` has the measured accuracy of predicted gains.
`advice.py` ranks the changes: `lp.advise`.
"""
