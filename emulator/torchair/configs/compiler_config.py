"""The compiler's options, which code builds at import whether or not it compiles."""


class CompilerConfig:
    """Options for a compilation; there is none here, so nothing reads them."""
