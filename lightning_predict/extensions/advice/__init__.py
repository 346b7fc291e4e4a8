"""Optimization advice: changes of a training, each a file here and a function of a recorded step.

`change.py` defines a change, and `measured.py` applies measurements to the changed step. `evidence.py` has the measured
accuracy of predicted gains. `advice.py` ranks the changes: `lp.advise`.
"""
