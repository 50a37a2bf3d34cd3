"""Trees of layers on disk: walk, copy, merge, measure. Their content may be hostile."""

from dutyfree.images.trees.layers import TreeSize, copy_tree, measure, merge_trees

__all__ = ["TreeSize", "copy_tree", "measure", "merge_trees"]
