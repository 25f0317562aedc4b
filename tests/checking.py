"""What the tests of the exercise checks share."""

import pytest

from vitlib import checks


def judged_against(reference_of):
    """A function that tells what the learner reads, and whether the notebook goes on with the answer.

    `reference_of(name)` is what it goes on with otherwise.
    """

    def verdict(capsys, answer, name):
        reference = reference_of(name)
        used = checks.use(answer, reference)
        assert used in (answer, reference)
        return capsys.readouterr().out, used is answer

    return verdict


def cases(table):
    """exercise -> description -> answer, as parameters of a test: (exercise, description, answer)."""
    pairs = [(name, case) for name in table for case in table[name].items()]
    return [pytest.param(name, *case, id=f"{name}: {case[0]}") for name, case in pairs]
