"""The estimates of the planner beside the simulation, on all shipped scenarios.

`python -m tests.benchmarks.plan_estimates` prints a line for each, and median and worst; it takes a minute.
"""

from __future__ import annotations

from statistics import median

from clustersim.scenarios import Scenario
from clustersim.scenarios.search.estimator import Estimator
from clustersim.scenarios.specification.loading import shipped


def main() -> None:
    """Print the errors."""
    errors = {}
    for name in shipped():
        scenario = Scenario.load(name)
        for variant, one in (scenario.variants or {"": scenario}).items():
            if one.specification.training is None:
                continue
            seconds = Estimator(one).estimate(one).seconds
            assert seconds is not None
            simulated = one.run().timeline.step_time
            errors[f"{name} {variant}".strip()] = error = seconds / simulated - 1
            print(
                f"{error:+8.2%}  {seconds:10.5g} s estimated, {simulated:10.5g} s simulated  {name} {variant}",
                flush=True,
            )
    sizes = [abs(error) for error in errors.values()]
    worst = max(errors, key=lambda name: abs(errors[name]))
    print(f"median {median(sizes):.2%}, worst {max(sizes):.2%} ({worst}), of {len(errors)}")


if __name__ == "__main__":
    main()
