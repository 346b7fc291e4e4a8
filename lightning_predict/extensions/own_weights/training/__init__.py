"""Train weights that know one's own GPU: `lightning-predict train`. Not imported when predicting.

`tables` reads what `measure` wrote and splits it, `networks` trains one network, and `own` tunes those that ship to the
GPUs of the tables. How the weights that ship were trained stands in `benchmarks/training`, which is not in the wheel.
"""
