"""Train weights from measurements: `lightning-predict train`. Not imported when predicting.

`tables` reads and splits measurements, `recipes` says how each family is trained, `networks` and `families` train,
`scores` says how good the result is on what was held out, `proxies` how good operations without a network are, and
`publishing` writes the files. `weights` is the whole way, for the command line.
"""
