"""Weights of the neural networks that predict utilisation: data types, file formats, lookup and download.

`records` defines the data types; `files` and `manifest` define the file formats. `store` searches an explicit path, a
configured download address (`fetch`), the user's cache and the bundled `files/`. Neither torch nor pickle is used.
"""
