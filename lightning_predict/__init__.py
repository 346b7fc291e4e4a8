"""The package; filled below."""
