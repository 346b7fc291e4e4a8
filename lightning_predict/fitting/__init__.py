"""From measurements to weights: `python -m lightning_predict.fitting`. Not imported when predicting.

`tables` reads measurements, `splits` says which problems no fit may see, `recipes` how each family is trained,
`families` and `training` train, `doublings` keeps larger problems from getting faster, `intervals` says how sure to be,
`scores` how good it is on what was held out, and `publishing` writes the files. `evaluation` compares whole iterations
with those that others timed.
"""
