"""Planning (scheduling) of training jobs on rented machines: from predicted times, prices and limits to a `Plan`.

`problem.py` defines problems and plans. `objective.py` computes the cost of each possible decision, and `milp.py` finds
the best one. `queues.py` has simple rules to compare with. `simulator.py` makes a new decision at every event.
`policies.py` recommends a plan. `files.py` reads problems, and predicts times for jobs that name a recorded step.
`exports.py` writes scripts that run a plan, and `plan_table.py` shows it.
"""
