"""``python -m tests.mutants``: which checks kill which mutants, and what hangs on one alone."""

from __future__ import annotations

import sys
from collections import defaultdict

from attnreg.conformance import Case, shrinking
from attnreg.conformance.checks import built_in
from attnreg.conformance.judging import judge
from tests.test_mutants import MUTANTS


def main() -> None:
    checks = built_in()
    shrinking.SECONDS = 0.0
    killers: dict[str, list[str]] = {}
    victims: dict[str, list[str]] = defaultdict(list)
    for mutant in MUTANTS:
        with mutant.patch():
            case = Case(mutant.variant, full=False)
            killers[mutant.name] = [
                name
                for name, check in checks.items()
                if (not check.full or name in mutant.kills)
                and judge(case, check, {}).status == "fail"
            ]
        for name in killers[mutant.name]:
            victims[name].append(mutant.name)
        shown = " ".join(n + ("*" if n in mutant.kills else "") for n in killers[mutant.name])
        print(f"{mutant.name}: {shown or 'SURVIVES'}", flush=True)
    print("\nMutants that one check alone kills:")
    for name, found in killers.items():
        if len(found) == 1:
            print(f"  {name}: {found[0]}")
    print("\nChecks that kill one mutant alone, or none:")
    for name in checks:
        if len(victims[name]) < 2:
            print(f"  {name}: {' '.join(victims[name]) or 'none'}")
    survivors = [name for name, found in killers.items() if not found]
    print(f"\n{len(MUTANTS)} mutants, {len(checks)} checks, {len(survivors)} survivors")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
