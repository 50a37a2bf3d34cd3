"""Images: recipes, layers and the store that keeps them, and their exchange with the rest of the world."""
