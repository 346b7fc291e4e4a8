"""Makes `python -m lightning_predict` run the command `lightning-predict`."""

from __future__ import annotations

import sys

from lightning_predict.cli.running import main

if __name__ == "__main__":
    sys.exit(main())
