"""Builds images from recipes: parses a recipe, computes the digests of its stages, and builds the missing stages."""
