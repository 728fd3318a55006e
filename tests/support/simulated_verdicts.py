"""Are the verdicts "better" and "worse" as reliable as promised? Simulated tables of comparisons with a known truth.

    make simulate [ARGS="--tables 2000"]

For each world it prints: the share of tables of 24 comparisons without any true difference that nevertheless contain a
"better" or "worse" (at most 5 % is promised), and how often the 95 % intervals of differences contain the true
value; and the largest share of tables with an "equivalent" although every true difference is as large as the
margin (at most 5 %), of margins of 2, 4 and 8 standard errors. Then it prints how often a true difference of 2.5
deviations is found.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from lmtransfer.verdicts.conditions import Condition, Examples, Score
from lmtransfer.verdicts.verdict import compare_conditions, judge_column

COMPARISONS = 24

#: A world is a function of a generator and a true difference that returns one table of pairs of conditions.
World = Callable[[np.random.Generator, float], list[tuple[Condition, Condition]]]


@dataclass(frozen=True)
class Counts:
    """The results of a world.

    Attributes:
        tables: number of tables.
        false_tables: share of the tables with any "better" or "worse".
        found: share of the comparisons called "better", each judged alone.
        coverage: share of the 95 % intervals of differences that contain the true difference.
        equivalent: share of the tables with any "equivalent".
    """

    tables: int
    false_tables: float
    found: float
    coverage: float
    equivalent: float


def simulate(world: World, tables: int, *, seed: int, difference: float = 0.0, margin: float | None = None) -> Counts:
    """Judge a number of tables of a world.

    Args:
        world: makes the tables.
        tables: number of tables.
        seed: seed of the generator.
        difference: the true difference; the true score of the control is 0.
        margin: a smaller difference does not matter; None: "equivalent" is not tested.
    """
    rng = np.random.default_rng(seed)
    equivalent = false_tables = found = covered = comparisons = 0
    for _ in range(tables):
        pairs = world(rng, difference)
        alone = [compare_conditions(condition, control) for condition, control in pairs]
        together = judge_column(alone, margins=[margin] * len(alone))
        false_tables += any(one.verdict in ("better", "worse") for one in together)
        equivalent += any(one.verdict == "equivalent" for one in together)
        found += sum(one.verdict == "better" for one in alone)
        covered += sum(_holds(one.plain_interval, difference) for one in alone)
        comparisons += len(pairs)
    return Counts(
        tables,
        false_tables / tables,
        found / comparisons,
        covered / comparisons,
        equivalent / tables,
    )


def falsely_equivalent(world: World, tables: int, *, seed: int) -> float:
    """The largest share of tables with an "equivalent" if every true difference is the margin, of several margins."""
    rng = np.random.default_rng(seed)
    errors = [compare_conditions(*pair).standard_error or 0.0 for _ in range(20) for pair in world(rng, 0.0)]
    margins = [errors_times * float(np.median(errors)) for errors_times in (2, 4, 8)]
    return max(simulate(world, tables, seed=seed, difference=m, margin=m).equivalent for m in margins)


def seeds_world(
    seeds: int,
    *,
    correlation: float = 0.0,
    control_deviation: float = 1.0,
    one_control: bool = False,
    control_seeds: int | None = None,
    paired: bool = True,
    comparisons: int = COMPARISONS,
) -> World:
    """One checkpoint on each side, with random effects of finetuning.

    Args:
        seeds: number of seeds of the condition.
        correlation: correlation of the effects of both sides with the same seed.
        control_deviation: deviation of the control; that of the condition is 1.
        one_control: whether all comparisons of a table share their control.
        control_seeds: number of seeds of the control; by default the same as for the condition.
        paired: whether the sides share their subsets and orders.
        comparisons: number of comparisons in a table.
    """
    num = max(seeds, control_seeds or seeds)

    def make(rng: np.random.Generator, difference: float) -> list[tuple[Condition, Condition]]:
        table = []
        luck = rng.standard_normal(num)
        control_luck = rng.standard_normal(num)
        for place in range(comparisons):
            if not one_control and place:
                luck, control_luck = rng.standard_normal(num), rng.standard_normal(num)
            own = math.sqrt(correlation) * luck + math.sqrt(1 - correlation) * rng.standard_normal(num)
            other = math.sqrt(correlation) * luck + math.sqrt(1 - correlation) * control_luck
            table.append(
                (
                    _condition(difference + own[:seeds], "a", "" if paired else None),
                    _condition(control_deviation * other[: control_seeds or seeds], None, "" if paired else None),
                )
            )
        return table

    return make


def pretraining_world(
    pretrainings: int, seeds: int, *, luck: float = 1.0, own_seeds: bool = False, both: bool = False
) -> World:
    """Several checkpoints of a recipe, each finetuned with several seeds.

    A score is the sum of the effects of its pretraining, of its finetuning seed (shared by both sides), and of both
    together.

    Args:
        pretrainings: number of pretraining seeds.
        seeds: number of finetuning seeds for each pretraining.
        luck: deviation of the effect of pretraining; that of finetuning is 1.
        own_seeds: whether each pretraining has its own finetuning seeds.
        both: whether the control has as many pretrainings (another recipe), or none.
    """

    def make(rng: np.random.Generator, difference: float) -> list[tuple[Condition, Condition]]:
        table = []
        for _ in range(COMPARISONS):
            of_seed = math.sqrt(0.5) * rng.standard_normal(pretrainings * seeds)

            def side(name: str, value: float, shared: np.ndarray = of_seed) -> Condition:
                scores = []
                for p in range(pretrainings):
                    lucky = value + luck * rng.standard_normal()
                    for f in range(seeds):
                        seed = p * seeds + f if own_seeds else f
                        of_run = math.sqrt(0.5) * rng.standard_normal()
                        scores.append(Score(float(lucky + shared[seed] + of_run), seed, f"{name}{p}"))
                return Condition(tuple(scores))

            num = pretrainings * seeds if own_seeds else seeds
            control = _condition(of_seed[:num] + math.sqrt(0.5) * rng.standard_normal(num), None, "")
            table.append((side("a", difference), side("b", 0.0) if both else control))
        return table

    return make


def constant_world(seeds: int) -> World:
    """A condition with random effects of finetuning against a score that is known exactly."""

    def make(rng: np.random.Generator, difference: float) -> list[tuple[Condition, Condition]]:
        control = Condition((Score(0.0, 0),), constant=True)
        return [(_condition(difference + rng.standard_normal(seeds), "a", ""), control) for _ in range(COMPARISONS)]

    return make


def examples_world(seeds: int, examples: int, *, cluster: int = 1, luck: float = 0.5, constant: str = "") -> World:
    """Scores that are means over examples, which are drawn again for each comparison.

    Args:
        seeds: number of seeds of both sides, paired.
        examples: number of scored examples.
        cluster: number of examples that share a passage and half of their effect.
        luck: deviation of the effect of a finetuning seed, in units of one example's divided by the root of their
            number.
        constant: in which nothing but the examples is drawn: "control", "both", or neither.
    """

    def make(rng: np.random.Generator, difference: float) -> list[tuple[Condition, Condition]]:
        groups = np.arange(examples) // cluster
        ids = np.arange(examples)
        table = []
        for _ in range(COMPARISONS):
            hardness = rng.standard_normal(examples)
            conditions = []
            for name, value in (("a", difference), (None, 0.0)):
                taste = math.sqrt(0.5) * (rng.standard_normal(examples) + rng.standard_normal(groups[-1] + 1)[groups])
                is_constant = constant == "both" or (constant == "control" and name is None)
                rows = 1 if is_constant else seeds
                seed_luck = 0.0 if is_constant else luck / math.sqrt(examples) * rng.standard_normal((rows, 1))
                scores = value + hardness + taste + seed_luck + 0.7 * rng.standard_normal((rows, examples))
                known = Examples(scores, ids, groups if cluster > 1 else None)
                made = tuple(Score(float(row.mean()), seed, name) for seed, row in enumerate(scores))
                conditions.append(Condition(made, known, constant=is_constant))
            table.append((conditions[0], conditions[1]))
        return table

    return make


WORLDS: Mapping[str, World] = {
    "3 seeds": seeds_world(3),
    "5 seeds": seeds_world(5),
    "3 seeds, spreads 1 : 3": seeds_world(3, control_deviation=3.0),
    "5 seeds, spreads 1 : 3": seeds_world(5, control_deviation=3.0),
    "3 seeds, correlated 0.7": seeds_world(3, correlation=0.7),
    "5 seeds, correlated 0.7": seeds_world(5, correlation=0.7),
    "5 seeds, one control for all": seeds_world(5, one_control=True),
    "5 seeds, not paired": seeds_world(5, paired=False),
    "5 against 3, not paired, spreads 1 : 3": seeds_world(5, control_seeds=3, paired=False, control_deviation=3.0),
    "5 seeds, not paired, spreads 1 : 3": seeds_world(5, paired=False, control_deviation=3.0),
    "3 seeds, not paired, spreads 1 : 3": seeds_world(3, paired=False, control_deviation=3.0),
    "3 x 3 of pretraining and finetuning": pretraining_world(3, 3),
    "5 x 3 of pretraining and finetuning": pretraining_world(5, 3),
    "3 x 5 of pretraining and finetuning": pretraining_world(3, 5),
    "5 x 5 of pretraining and finetuning": pretraining_world(5, 5),
    "5 x 5, no luck of pretraining": pretraining_world(5, 5, luck=0.0),
    "3 x 3, both sides pretrained": pretraining_world(3, 3, both=True),
    "5 x 5, both sides pretrained": pretraining_world(5, 5, both=True),
    "3 x 3, seeds of their own": pretraining_world(3, 3, own_seeds=True),
    "5 x 1, seeds of their own": pretraining_world(5, 1, own_seeds=True),
    "5 seeds, 300 examples": examples_world(5, 300),
    "3 seeds, 300 examples": examples_world(3, 300),
    "5 seeds, 300 examples, lucky seeds": examples_world(5, 300, luck=2.0),
    "5 seeds against a constant": constant_world(5),
    "3 seeds against a constant": constant_world(3),
    "5 seeds against a constant, 300 examples": examples_world(5, 300, luck=2.0, constant="control"),
    "3 seeds against a constant, 300 examples": examples_world(3, 300, luck=2.0, constant="control"),
    "both constant, 300 examples": examples_world(1, 300, constant="both"),
    "5 seeds, 400 examples in 40 passages": examples_world(5, 400, cluster=10, luck=2.0),
}


def main() -> None:
    """Print one line for each world."""
    parser = argparse.ArgumentParser(
        prog="make simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=2000)
    parser.add_argument("--only", default="", help="worlds whose name holds this")
    given = parser.parse_args()
    heading = f"{'false tables':>12} {'differences held':>17} {'equivalent':>11}"
    print(f"{'no true difference':48} {heading}")
    for name, world in WORLDS.items():
        if given.only in name:
            found = simulate(world, given.tables, seed=0)
            equivalent = falsely_equivalent(world, given.tables, seed=0)
            print(
                f"{name:48} {found.false_tables:12.2%} {found.coverage:17.2%} {equivalent:11.2%}",
                flush=True,
            )
    shared = {
        f"pairs, correlated {rho}": seeds_world(5, correlation=rho, comparisons=1) for rho in (0.0, 0.1, 0.3, 0.7)
    }
    for name, world in {"not paired": seeds_world(5, paired=False, comparisons=1), **shared}.items():
        found = simulate(world, 10 * given.tables, seed=0, difference=2.5)
        print(f"5 seeds, {name}: a true difference of 2.5 deviations is found in {found.found:.1%}", flush=True)


def _condition(values: np.ndarray, pretraining: str | None, design: str | None) -> Condition:
    scores = tuple(Score(float(value), seed, pretraining) for seed, value in enumerate(values))
    return Condition(scores, design=design)


def _holds(interval: tuple[float, float] | None, value: float) -> bool:
    return interval is not None and interval[0] <= value <= interval[1]


if __name__ == "__main__":
    main()
