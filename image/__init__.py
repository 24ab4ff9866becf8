"""How the stack is built into an image and run as a container."""
