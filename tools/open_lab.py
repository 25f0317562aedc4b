"""Open JupyterLab on your own copies of the lessons.

    python tools/open_lab.py [options of JupyterLab]

The copies lie in my_notebooks/. A missing one is made, and none is ever overwritten: what you change there
stays, and the originals in notebooks/ stay as they are. To start a lesson afresh, delete or rename your copy
first.
"""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def copy_missing(originals, copies):
    """Copy each notebook of the folder `originals` that the folder `copies` lacks. Gives the new names."""
    copies.mkdir(exist_ok=True)
    missing = sorted(path.name for path in originals.glob("*.ipynb") if not (copies / path.name).exists())
    for name in missing:
        half = copies / f"{name}.part"
        shutil.copyfile(originals / name, half)
        half.replace(copies / name)  # interrupted before this line, the copy counts as missing
    return missing


if __name__ == "__main__":
    from jupyterlab.labapp import LabApp

    for name in copy_missing(ROOT / "notebooks", ROOT / "my_notebooks"):
        print(f"my_notebooks/{name}: a new copy, yours to change")
    LabApp.launch_instance(
        [f"--ServerApp.root_dir={ROOT}", "--LabApp.default_url=/lab/tree/my_notebooks", *sys.argv[1:]]
    )
