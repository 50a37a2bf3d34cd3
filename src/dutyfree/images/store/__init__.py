"""The store: layers named by their digest, images by name, and a cache of built stages."""

from dutyfree.images.store.caches import CacheVersion
from dutyfree.images.store.holds import Hold
from dutyfree.images.store.layers import LayerInfo
from dutyfree.images.store.layout import default_store
from dutyfree.images.store.locks import FileLock
from dutyfree.images.store.names import NamedImage
from dutyfree.images.store.prune import Pruned
from dutyfree.images.store.stages import CachedStage
from dutyfree.images.store.store import Store
from dutyfree.images.store.usage import ImageUsage, Usage

__all__ = [
    "Store",
    "default_store",
    "CacheVersion",
    "CachedStage",
    "FileLock",
    "Hold",
    "ImageUsage",
    "LayerInfo",
    "NamedImage",
    "Pruned",
    "Usage",
]
