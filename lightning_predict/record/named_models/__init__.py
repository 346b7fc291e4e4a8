"""Training steps of models by name, without a script.

`names.py` parses a name such as `hf:Qwen/Qwen2.5-7B` or the path of a configuration. It also reads the shipped
configurations (`models.json`). `options.py` says what a step is. `transformers_models.py`, `image_models.py` and
`diffusion_models.py` build the model on the meta device with a batch and a loss. `step.py` records the step.
"""
