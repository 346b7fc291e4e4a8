"""Regress the times of past runs on their settings."""
