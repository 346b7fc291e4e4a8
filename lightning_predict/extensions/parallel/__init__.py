"""Tensor, pipeline, context and expert parallelism, gradient checkpointing, and the search for the fastest layout.

`tensor_parallel.py` splits transformer blocks, `pipeline_parallel.py` assigns blocks to stages, and `experts.py`
distributes experts. `recomputation.py` models gradient (activation) checkpointing. `model_parallel.py` predicts the
time of the combination. `external_configs.py` reads configurations of other projects. `search.py` searches the
strategies of one layout, and `layout_search.py` ranks layouts.
"""
