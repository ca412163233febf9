"""How the K of a tile is shared among CTAs: workspace and grid of each way."""
