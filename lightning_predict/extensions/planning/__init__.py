"""Planning of jobs on machines to rent: from predicted times, prices and limits to a `Plan`.

`problem.py` defines problems and plans. `objective.py` computes the costs of a decision, `milp.py` optimizes it, and
`queues.py` has rules to compare with. `simulator.py` decides again at every event. `policies.py` recommends a plan.
`files.py` reads problems, with predicted times for jobs that name a recorded step. `exports.py` writes scripts that run
a plan, and `pictures.py` draws it.
"""
