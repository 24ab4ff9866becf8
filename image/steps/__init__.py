"""What the Dockerfile's RUN lines call, one subject a module. Those before the packages use the standard library only."""
