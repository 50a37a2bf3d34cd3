"""Opening the spawner: its root is made in steps, and what this machine refuses of the host's parts is done without."""

from __future__ import annotations

from dataclasses import replace

from dutyfree.substrates.cell import spawner_root
from dutyfree.substrates.cell.parts import Part
from dutyfree.substrates.cell.setting import Setting
from dutyfree.substrates.cell.spawner import Spawner


async def settle(spawner: Spawner, setting: Setting) -> Setting:
    """Make the spawner's root; returns the setting with the parts as they can be shown. Raises SubstrateUnavailable."""
    await spawner.prepare(spawner_root.root_plan(setting))
    shown = [part for part in setting.host.parts if await _can_be_shown(spawner, setting, part)]
    await spawner.prepare(spawner_root.move_plan(setting))
    copied = {path for path, _mode, _owner in setting.host.copies}  # cells have these of their own
    parts = tuple([await _tried(spawner, setting, part) for part in shown if part.path not in copied])
    setting = replace(setting, host=replace(setting.host, parts=parts))
    await spawner.prepare(spawner_root.last_plan(setting))
    if setting.rootless:
        return setting
    tried = [path for path in ("/mask", "/layers", setting.disk_mount) if not await _translates(spawner, path)]
    return replace(setting, own_ids="/mask" not in tried, untranslated=frozenset(tried))


async def _translates(spawner: Spawner, path: str) -> bool:
    return await spawner.attempt(spawner_root.translation_plan(path)) is None


async def _can_be_shown(spawner: Spawner, setting: Setting, part: Part) -> bool:
    plan = spawner_root.part_plan(setting, part)
    return not plan or await spawner.attempt(plan) is None


async def _tried(spawner: Spawner, setting: Setting, part: Part) -> Part:
    if not part.is_overlaid:
        return part
    refused = await spawner.attempt(spawner_root.trial_plan(setting, part))
    return part if refused is None else part.as_it_is("the kernel makes no overlay of it")
