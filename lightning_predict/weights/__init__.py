"""Weights of the neural networks that predict utilisation: data types, file formats and lookup.

`records` defines the data types; `files` defines the file formats. `store` searches an explicit path and the bundled
`files/`. Neither torch nor pickle is used.
"""
