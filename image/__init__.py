"""How the stack is built into images, and how they are run."""
