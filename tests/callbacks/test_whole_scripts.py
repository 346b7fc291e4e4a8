"""Scripts with odd surroundings end as without our callbacks: with the same exit code, weights and random numbers."""

import pytest

from tests.soak.whole_scripts import SCRIPTS, compared


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_ends_as_without_callbacks(name: str) -> None:
    _, problem = compared(name)
    assert problem == ""
