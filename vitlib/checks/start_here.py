"""Check of lesson 00."""

from vitlib.checks import NotYet, check


@check("number of patches")
def _(answer):
    if answer == 8:
        raise NotYet("8 is the number of patches along one side. How many such rows are there?")
    if answer in (16, 48):
        raise NotYet(f"{answer} is how much one patch holds (16 pixels, 48 numbers), not how many there are.")
    if answer == 65:
        raise NotYet("65 counts the class token too. It is a token, but not a patch of the picture.")
    if answer != 64:
        raise NotYet(f"{answer} is not it. How often does a patch of 4 pixels fit into a side of 32 pixels?")
    return "8 rows of 8 patches. Every one becomes a token."
