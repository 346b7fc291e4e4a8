"""Regression of the times of past runs on their settings."""
