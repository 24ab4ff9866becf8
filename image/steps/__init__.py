"""What the Dockerfile's RUN lines call, one subject a module.

Those that run before the packages are there use the standard library only.
"""
