"""Stand-in for MindSpeed: the modules that patches change, and what verl asks of it."""
