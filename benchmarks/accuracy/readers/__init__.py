"""Readers of published tables and pages: each yields the cases of one source."""
