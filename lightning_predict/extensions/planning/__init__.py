"""Plan jobs on machines to rent: predicted times, prices and limits give a `Plan`.

`problem.py` has what is planned and what comes out. `objective.py` makes a decision a table of dollars;
`milp.py` solves it; `queues.py` has the rules to compare with. `simulator.py` decides again at every event;
`policies.py` recommends a plan; `study.py` compares policies over many random instances. `files.py` reads problems and
predicts the times of jobs that name a recorded step; `exports.py` writes what starts a plan, `pictures.py` shows it.
"""
