"""What to run: recipes as Hydra configs, and the way from a recipe to a watched run."""
