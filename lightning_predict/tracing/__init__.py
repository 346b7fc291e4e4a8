"""See the docstring of the package for what lives here."""
