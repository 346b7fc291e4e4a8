"""The rest of a run: its remaining steps, their time, and corrections from the history of earlier runs."""
