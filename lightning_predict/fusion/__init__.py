"""The compiled step: what it keeps for the backward pass (`joint_graph.py`) and its fused kernels (`kernels.py`)."""
