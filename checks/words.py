"""Words in both languages of the command line."""

from typing import NamedTuple

LANGUAGES = ("en", "zh")


class Text(NamedTuple):
    """English and Chinese."""

    en: str
    zh: str


Words = str | Text  # plain where it reads the same in both: versions, names, commands


def say(words: Words, language: str = "en") -> str:
    """Words in a language."""
    return words if isinstance(words, str) else words[LANGUAGES.index(language)]
