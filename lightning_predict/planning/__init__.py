"""Which machines for which jobs, and when: jobs with predicted times, prices and limits give a `Plan`.

`records.py` has the problem and `plans.py` what comes out. `costs.py` and `objective.py` make a decision a table of
dollars; `milp.py` solves it exactly, `heuristic.py` approximately, `baselines.py` has the queue rules to compare with.
`simulation.py` decides anew at every event; `choosing.py` recommends a plan; `study.py` compares policies over many
random instances. `commands.py` has the two commands, `files.py` reads their files, `exports.py`, `figures.py`,
`page.py` and `tables.py` show a plan.
"""
