"""Adds the samples of `examples/` to the wheel, as `lightning_predict/examples`; pyproject.toml has the rest."""

from pathlib import Path
from shutil import copy

from setuptools import setup
from setuptools.command.build_py import build_py

EXAMPLES = ("gpt2.json.gz", "vit.json.gz", "dlrm.json.gz", "jobs.yaml", "runs.csv")


class WithExamples(build_py):
    """Copies the examples beside the modules, unless the installation is editable."""

    def run(self) -> None:
        """Copy modules, then examples."""
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib, "lightning_predict", "examples")
            self.mkpath(str(folder))
            for name in EXAMPLES:
                copy(Path("examples", name), folder)


setup(cmdclass={"build_py": WithExamples})
