"""`python3 -m checks.facts [NAMED]`: the document on standard output. NAMED is a recipe's paths by key, as JSON."""

import json
import sys

from checks.facts import collect

if __name__ == "__main__":
    named = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    json.dump(collect(named, seconds=15), sys.stdout, indent=1, ensure_ascii=True)
    sys.stdout.write("\n")
