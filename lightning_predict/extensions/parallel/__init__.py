"""Tensor, pipeline, context and expert parallelism, and the search for the fastest layout.

`tensor_parallel.py` splits blocks, `pipeline_parallel.py` assigns them to stages, `experts.py` distributes experts,
`recomputation.py` models activation checkpointing, and `model_parallel.py` times them together. `foreign.py` reads
configurations of other projects. `search.py` searches the strategies of one layout; `layout_search.py` ranks layouts.
"""
