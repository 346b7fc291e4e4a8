"""Search for the fastest layout: strategies of one layout (`search.py`), ranked layouts (`ranking.py`), their goodput.

`commands.py` has the commands `parallel` and `curve`.
"""
