"""Sets up the spawner's root in steps. If this machine refuses a part of the host's root, cells work without it."""

from __future__ import annotations

from dataclasses import replace

from dutyfree.substrates.cell import spawner_root
from dutyfree.substrates.cell.parts import Part, Showing
from dutyfree.substrates.cell.setting import Setting
from dutyfree.substrates.cell.spawner import Spawner


async def set_up(spawner: Spawner, setting: Setting) -> Setting:
    """Make the spawner's root. Returns the setting with the parts that could be shown. Raises SubstrateUnavailable."""
    await spawner.prepare(spawner_root.root_plan(setting))
    taken = await _take_parts(spawner, setting)
    await spawner.prepare(spawner_root.move_plan(setting))
    shown = [await _try_part(spawner, setting, part) for part in taken]
    parts = tuple(part for part in shown if part is not None)
    setting = replace(setting, host=replace(setting.host, parts=parts))
    await spawner.prepare(spawner_root.last_plan(setting), at_once=True)
    if setting.rootless:
        return setting
    tried = [path for path in ("/mask", "/layers", setting.disk_mount) if not await _translates(spawner, path)]
    return replace(setting, own_ids="/mask" not in tried, untranslated=frozenset(tried))


async def _translates(spawner: Spawner, path: str) -> bool:
    return await spawner.attempt(spawner_root.translation_plan(path)) is None


async def _take_parts(spawner: Spawner, setting: Setting) -> list[Part]:
    """The parts that the spawner could mount, numbered. A part that cells have a copy of is not needed."""
    copied = {path for path, _mode, _owner in setting.host.copies} if not setting.rootless else set()
    found = []
    for number, part in enumerate(setting.host.parts, 1):
        numbered = replace(part, number=number)
        if part.showing is Showing.TAKEN_APART:
            found.append(numbered)
        elif part.path in copied:
            await spawner.attempt(spawner_root.copied_part_plan(setting, part))
        elif await spawner.attempt(spawner_root.part_plan(setting, numbered)) is None:
            found.append(numbered)
    return found


async def _try_part(spawner: Spawner, setting: Setting, part: Part) -> Part | None:
    """The part, overlaid or else read-only; None if neither works."""
    if not part.is_overlaid or await spawner.attempt(spawner_root.trial_plan(setting, part)) is None:
        return part
    if await spawner.attempt(spawner_root.as_it_is_plan(part)) is not None:
        return None
    return part.as_it_is("the kernel refuses an overlay over it")
