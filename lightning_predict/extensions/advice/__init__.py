"""What could be changed about a training: each change is a file here, and a function of a recorded step.

`change.py` says what a change is, `measured.py` keeps what was measured, `evidence.py` says how well the gains of each
kind are foretold, `advice.py` ranks them: `lp.advise`.
"""
