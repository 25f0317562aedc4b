"""Check of lesson 00."""

from vitlib.checks import NotYet, check


@check("number of patches")
def _(answer):
    if isinstance(answer, str) or not hasattr(answer, "__int__"):
        raise NotYet(f"give the number itself, such as 64, and not {answer!r}.")
    if answer == 14:
        raise NotYet("14 is the number of patches along one side. How many such rows are there?")
    if answer in (256, 768):
        raise NotYet(f"{answer} is what one patch holds (256 pixels, 768 numbers), not how many there are.")
    if answer == 197:
        raise NotYet("197 counts the class token too. It is a token, but not a patch of the picture.")
    if answer == 64:
        raise NotYet("64 is for 32×32 pixels in patches of 4×4. Here it is 224×224 in patches of 16×16.")
    if answer == 224 * 224:
        raise NotYet("that is the number of pixels. A patch has 16×16 of them.")
    if answer != 196:
        raise NotYet(f"{answer} is not it. How often do 16 pixels fit into a side of 224 pixels?")
    return "14 rows of 14 patches. Every one becomes a token."
