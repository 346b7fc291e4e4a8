"""Makes a Trace of a training step, or reads one from a file. Importing this package does not import torch.

The Trace itself, without torch:

* `trace.py`: `Trace` and its parts, and its file format, versioned JSON; `anonymised` hides names.
* `imports.py`: `import_trace`, for files of other tools. `kineto.py` reads profiles exported by `torch.profiler`:
  `events.py` nests their calls, `attribution.py` selects the operations, `calls.py` reads tensors and arguments.
* Rules shared by all recorders: `signatures.py` (argument names, and calls that are recorded whole), `phases.py`
  (forward, backward, optimizer, other).
* `recorded_on.py`: where a step was recorded (GPU, torch release, code path), with notes for the user.
* `operand_strides.py`: memory layout of images, matmul factors and element-wise operands.

Recording a step, with torch:

* `recording.py`: `capture`, for a function that runs a step; `session.py`: `CaptureSession`, for a loop owned by
  others.
* `dispatch.py`: the recorder for the CPU and the meta device, built on the modes of `modes.py`, the hooks of `hooks.py`
  and the values of `tensors.py`.
* `profiler.py`: the recorder for CUDA and for compiled code, which passes its events to `kineto.py`. Markers around
  module calls (`hooks.py`) identify the module of each event, except in compiled code.
* `environment.py`: parameters, memory, flags and compiled code around the step.
"""
