"""`python3 -m checks.facts`: the document on standard output."""

import json
import sys

from checks.facts import collect

if __name__ == "__main__":
    json.dump(collect(seconds=15), sys.stdout, indent=1, ensure_ascii=True)
    sys.stdout.write("\n")
