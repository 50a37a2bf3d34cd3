"""From a recipe to an image: read, named by its content, built stage by stage."""
