"""What to change upstream: one module for each change. None is needed so far."""
