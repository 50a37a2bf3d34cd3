"""Trees of layers on the disk: walked, copied, merged, measured. What is in them may be hostile."""

from dutyfree.images.trees.layers import TreeSize, copy_tree, measure, merge_trees

__all__ = ["TreeSize", "copy_tree", "measure", "merge_trees"]
