"""Which environment variables hold secrets, and what is shown in their place."""

import re
from collections.abc import Mapping

# Words of a name, between underscores; those that mean nothing else may end a longer word, as in PGPASSWORD.
SECRET = re.compile(
    r"(?:^|_)(?:TOKEN|AUTH|COOKIES?|SESSION|PASS|PWD|CREDENTIALS?|KEY|\w*(?:SECRET|PASSWORD|PASSWD|PASSPHRASE)"
    r"|(?:API|ACCESS|PRIVATE)KEY)(?:_|$)",
    re.IGNORECASE,
)
PLAIN_NAMES = {"PWD"}  # of the shell
IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+(?=@)")
REDACTED = "(redacted)"


def redacted(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by name, with secrets replaced."""
    return {name: shown(name, value) for name, value in sorted(environment.items())}


def shown(name: str, value: str) -> str:
    """A variable's value, or what may be shown of it."""
    if value and SECRET.search(name) and name not in PLAIN_NAMES:
        return REDACTED
    return IN_ADDRESS.sub(REDACTED, value)
