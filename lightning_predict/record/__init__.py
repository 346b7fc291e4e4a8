"""Records a training step as a Trace, or reads a Trace from a file. Importing this package does not import torch.

Without torch:

* `trace.py`: `Trace` and its parts, and its file format (versioned JSON). `anonymised` hides names.
* `imports.py`: `import_trace`, for files of `torch.profiler`. `kineto.py` reads profiles exported by `torch.profiler`:
  `events.py` nests their calls, `attribution.py` selects the operations, `calls.py` reads tensors and arguments.
* Rules that all recorders share: `signatures.py` (argument names, and calls that are recorded as one operation) and
  `phases.py` (forward, backward, optimizer, other).
* `recorded_on.py`: where a step was recorded (GPU, code path), with notes for the user.
* `torch_releases.py`: what torch does by default on CUDA, by release.
* `operand_strides.py`: memory layout of images, matmul factors and element-wise operands.

With torch, to record a step:

* `recording.py`: `capture`, for a function that runs a step. `session.py`: `CaptureSession`, for a loop that other code
  runs.
* `dispatch.py`: the recorder for the CPU and the meta device. This recorder uses the modes of `modes.py`, the hooks of
  `hooks.py` and the values of `tensors.py`.
* `profiler.py`: the recorder for CUDA and for compiled code. This recorder passes its events to `kineto.py`. Markers
  around module calls (`hooks.py`) identify the module of each event, except in compiled code.
* `environment.py`: parameters, memory, flags and compiled code around the step.
"""
