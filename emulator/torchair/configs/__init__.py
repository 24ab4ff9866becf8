"""Options of the graph compiler."""
