"""Tensor, pipeline, context and expert parallelism, and the search for the fastest layout.

`tensor_parallel.py` splits blocks, `pipeline_parallel.py` deals them out to stages, `experts.py` distributes experts,
`recomputation.py` computes activations twice, and `model_parallel.py` times them together. `foreign.py` reads the
configurations of other projects. `search.py` searches the strategies of one layout; `layout_search.py` ranks layouts.
"""
