"""Makes the cpu matrix's environment as ./invokew does, in the project's folder: python3.11 -m image.steps.cpu"""

import platform
import sys

import environment
from image.steps.step import PROJECT, StepError, run


def make() -> None:
    """The environment. StepError with what invokew would say."""
    try:
        environment.set_up(PROJECT, platform.machine())
    except environment.SetupError as error:
        what, _, telling = str(error).partition("\n    found: ")
        raise StepError("the cpu matrix's environment", telling or what, what if telling else "see there") from None


if __name__ == "__main__":
    sys.exit(run("cpu", make))
