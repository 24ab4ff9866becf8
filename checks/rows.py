"""What the tables of this folder are made of."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

Line = Annotated[str, StringConstraints(min_length=1)]


class Row(BaseModel):
    """A row: nothing but the fields that it has, and never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Text(Row):
    """A text in both languages."""

    en: Line
    zh: Line

    def said(self, language: str) -> str:
        """The text in `en` or `zh`."""
        return getattr(self, language)
