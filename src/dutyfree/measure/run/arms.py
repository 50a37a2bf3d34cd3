"""The arms of a study, opened once for all of its trials."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dutyfree.contract import Substrate
from dutyfree.errors import DutyfreeError, InfraFailed, SubstrateUnavailable
from dutyfree.measure.design.plan import NULL
from dutyfree.measure.design.study import Arm
from dutyfree.measure.null import NullSubstrate
from dutyfree.model import Image
from dutyfree.substrates import registry
from dutyfree.substrates.guarded import GuardedSubstrate
from dutyfree.substrates.guarded.substrate import DESTROY_TIMEOUT_S

OPEN_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class OpenArm:
    """An arm whose substrate is open."""

    arm: Arm
    substrate: GuardedSubstrate
    image: Image
    facts: Mapping[str, Any]
    """JSON values: isolation, capabilities, "emulated", the engine's version if the substrate reports it."""
    destroy_timeout_s: float = DESTROY_TIMEOUT_S

    async def close(self) -> str:
        """Close the substrate, in bounded time. Returns the error as text; empty if there was none."""
        task = asyncio.ensure_future(self.substrate.close())
        done, _ = await asyncio.wait({task}, timeout=3 * self.destroy_timeout_s)
        if not done:
            task.cancel()
            return "it did not close in time"
        error = None if task.cancelled() else task.exception()
        return "" if error is None else f"{type(error).__name__}: {error}"[:500]


def load_substrate(arm: Arm) -> Substrate:
    """The arm's substrate, not opened. Raises as the registry does."""
    if arm.substrate == NULL:
        return NullSubstrate()
    return registry.load(arm.substrate, **registry.parse_options(f"{k}={v}" for k, v in arm.options.items()))


def check_arms(arms: Iterable[Arm]) -> None:
    """Raise InvalidRequest for an unknown substrate or option. Does not check whether the substrate works here.

    Arms of another installation are checked there, when they are opened.
    """
    for arm in arms:
        if arm.python is None:
            with contextlib.suppress(InfraFailed):
                load_substrate(arm)


async def open_arm(
    arm: Arm,
    *,
    timeout_s: float = OPEN_TIMEOUT_S,
    destroy_timeout_s: float = DESTROY_TIMEOUT_S,
    load: Callable[[Arm], Substrate] = load_substrate,
) -> OpenArm:
    """Open the arm. Raises InvalidRequest for an unknown substrate, option or image.

    Raises SubstrateUnavailable if the substrate does not open for another reason or in time; then it is closed again.
    """
    substrate = GuardedSubstrate(load(arm), destroy_timeout_s=destroy_timeout_s)
    opened = False
    task = asyncio.ensure_future(substrate.open())
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if not done:
            raise SubstrateUnavailable(f"{arm.substrate} did not open within {timeout_s:g} s")
        task.result()
        image = Image() if arm.image is None else substrate.named_image(arm.image)
        ready = OpenArm(arm, substrate, image, _facts(substrate), destroy_timeout_s)
        opened = True
    except DutyfreeError:
        raise
    except Exception as error:
        raise SubstrateUnavailable(f"{arm.substrate} cannot be opened: {type(error).__name__}: {error}") from error
    finally:
        if not opened:
            task.cancel()
            await OpenArm(arm, substrate, Image(), {}, destroy_timeout_s).close()
    return ready


def _facts(substrate: GuardedSubstrate) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "substrate": substrate.name,
        "isolation": substrate.isolation.label,
        "capabilities": sorted(str(each) for each in substrate.capabilities),
        "emulated": substrate.emulated,
    }
    return facts | ({"version": substrate.version[:200]} if substrate.version else {})
