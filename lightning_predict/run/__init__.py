"""The rest of a run: its remaining steps, their time, and corrections from earlier runs."""
