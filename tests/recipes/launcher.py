"""The command line as `./invokew` runs it, but for the facts about the machine: they take longer than the runs here.

python launcher.py train --recipe RECIPE …
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cli
from recipes import train

if __name__ == "__main__":
    train._facts = lambda *_: None
    cli.main(sys.argv[1:])
