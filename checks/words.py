"""Words in both languages of the command line."""

from typing import NamedTuple

from errors import UserError

LANGUAGES = ("en", "zh")


class Text(NamedTuple):
    """English and Chinese."""

    en: str
    zh: str


Words = str | Text  # plain where it reads the same in both: versions, names, commands


def check_language(language: str) -> None:
    """UserError for a language that there are no words in."""
    if language not in LANGUAGES:
        raise UserError(f"--lang {language}: expected one of {', '.join(LANGUAGES)}")


def say(words: Words, language: str = "en") -> str:
    """Words in a language."""
    return words if isinstance(words, str) else words[LANGUAGES.index(language)]
