"""Make a Trace of a training step or of a file. Importing this package loads no torch.

What a Trace is, without torch:

* `trace.py`: `Trace`, the values inside it, and its file: versioned JSON; `anonymised` hides names.
* `imports.py`: `import_trace`, for other tools' files. `kineto.py` reads profiles that `torch.profiler` exported:
  `events.py` nests their calls, `attribution.py` picks the operations among them, `calls.py` reads tensors and
  arguments.
* The rules that every recorder shares: `signatures.py` (names of arguments, and what is recorded whole), `phases.py`
  (forward, backward, optimizer, other).
* `recorded_on.py`: where a step was recorded (GPU, release, code path), and what the user should know of it.
* `operand_strides.py`: how operands lie in memory: images, factors of products, and operands beside each other.

How a step is recorded, with torch:

* `recording.py`: `capture`, for a step of your own; `session.py`: `CaptureSession`, for a loop that it does not own.
* `dispatch.py`: the recorder for the CPU and the meta device, on the modes of `modes.py`, the hooks of `hooks.py` and
  the values of `tensors.py`.
* `profiler.py`: the recorder for CUDA and for compiled code, which hands its events to `kineto.py`; marks around the
  modules' calls (`hooks.py`) tell it whose they are, except in compiled code.
* `environment.py`: parameters, memory, switches and compiled code around the step.
"""
