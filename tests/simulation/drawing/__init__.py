"""How the plan of a world is drawn from its seed: a stream of chance for each part."""
