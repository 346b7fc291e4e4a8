"""What every part needs: errors, checked reading of foreign values, units, intervals, notes, files."""

__version__ = "0.1.0"
