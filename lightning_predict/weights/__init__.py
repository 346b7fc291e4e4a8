"""Weights of the utilisation models: the values (`records`), their files (`files`, `manifest`) and how they are found.

`store` looks at an explicit path, the user's cache, the bundled `files/` and a configured address (`fetch`). No torch,
no pickle. Example::

    >>> from lightning_predict.weights.store import load_weights
    >>> load_weights(["H100-SXM-80GB"]).base.gpu
    'base'
"""
