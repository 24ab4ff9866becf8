"""What can go wrong: facts about a machine, and what follows from them."""
