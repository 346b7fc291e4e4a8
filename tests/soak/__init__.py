"""Checks that take too long for every change: `make soak`. Each prints a table for docs/reliability.md."""
