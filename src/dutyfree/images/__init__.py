"""Images: recipes, layers, the store that keeps them, and import and export."""
