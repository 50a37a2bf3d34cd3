"""The costs of other substrates in a bill, for its projections: measured by `dutyfree advise`, or built in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dutyfree.model import Bill, Isolation, OtherSubstrate

BUILT_IN = "built-in measurements of one small machine"


def with_others(bill: Bill, isolation: Isolation, advice: str | Path | None) -> Bill:
    """The bill, with the costs of every other substrate that isolates at least as strongly.

    `advice` is a file that `dutyfree advise --json` has printed. Raises InvalidRequest for any other content.
    """
    # Both load the registry of substrates, which most hosts have no other use for.
    from dutyfree.choose.automatic import PRIORS
    from dutyfree.choose.candidates import read_candidates

    candidates = PRIORS if advice is None else read_candidates(advice)
    here = next((each.slowdown for each in candidates if each.substrate == bill.substrate), 1.0)
    others = tuple(
        OtherSubstrate(each.name, each.acquire_s, each.action_overhead_s, each.slowdown / (here or 1.0))
        for each in candidates
        if each.substrate != bill.substrate and each.isolation >= isolation
    )
    source = BUILT_IN if advice is None else f"the measurements in {advice}"
    return replace(bill, others=others, others_source=source)
