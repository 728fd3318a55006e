"""Pairing and variance, compared with Student's tests, analysis of variance, and a bootstrap over examples."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from support.refusals import refuses

from lmtransfer.verdicts.conditions import Condition, Examples, Score, condition
from lmtransfer.verdicts.pairing_and_variance import NO_PREDICTIONS
from lmtransfer.verdicts.verdict import compare_conditions


def unpaired(one: Condition) -> Condition:
    return replace(one, design=None)


def crossed(table: np.ndarray, name: str = "run") -> Condition:
    """Return a condition of P pretraining runs by F finetuning seeds."""
    rows, columns = table.shape
    return Condition(tuple(Score(float(table[p, f]), f, f"{name}/{p}") for p in range(rows) for f in range(columns)))


def test_a_paired_difference_is_students_test_of_the_pairs() -> None:
    # "Student" 1908, hours of sleep gained: t = 4.0621 with 9 degrees of freedom, p = 0.002833
    drug_a = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    drug_b = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = compare_conditions(condition(drug_b, pretraining="b"), condition(drug_a))
    assert found.paired
    assert found.delta == pytest.approx(1.58)
    assert found.standard_error is not None
    assert found.delta / found.standard_error == pytest.approx(4.0621, abs=1e-4)
    assert (found.degrees_of_freedom, found.num_seeds) == (pytest.approx(9), (10, 10))
    assert found.p_value == pytest.approx(0.002833, abs=1e-6)
    assert found.interval == pytest.approx((0.7001142, 2.4598858), abs=1e-6)
    assert found.verdict == "better"
    backwards = compare_conditions(condition(drug_b, pretraining="b"), condition(drug_a), higher_is_better=False)
    assert backwards.verdict == "worse"


def test_an_unpaired_difference_is_welchs_test() -> None:
    # The same data as two groups: t = 1.8608 with 17.776 degrees of freedom, p = 0.07939
    drug_a = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    drug_b = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = compare_conditions(unpaired(condition(drug_b)), unpaired(condition(drug_a)))
    assert not found.paired
    assert found.degrees_of_freedom == pytest.approx(17.776, abs=1e-3)
    assert found.p_value == pytest.approx(0.07939, abs=1e-5)
    assert found.verdict == "no difference shown"
    by_hand = math.sqrt(np.var(drug_a, ddof=1) / 10 + np.var(drug_b, ddof=1) / 10)
    assert found.standard_error == pytest.approx(by_hand)
    # seeds without a partner are compared in the same way
    apart = compare_conditions(condition(drug_b), condition(drug_a, seeds=range(100, 110)))
    assert apart.p_value == pytest.approx(found.p_value)
    assert not apart.paired


def test_pairs_are_matched_by_seed_and_the_rest_is_left_out() -> None:
    one = condition([0.9, 0.5, 0.7, 0.6], seeds=[3, 1, 2, 9])
    other = condition([0.65, 0.4, 0.8], seeds=[2, 1, 3])
    found = compare_conditions(one, other)
    assert found.delta == pytest.approx(np.mean([0.1, 0.1, 0.05]))
    assert (found.num_seeds, found.paired) == ((3, 3), True)
    assert any("1 seed" in note for note in found.notes)


def test_the_luck_of_pretraining_is_that_of_an_analysis_of_variance() -> None:
    """Crossed pretraining and finetuning seeds against one control, with expected mean squares computed by hand."""
    rng = np.random.default_rng(1)
    table = rng.normal(size=(4, 1)) + rng.normal(size=(1, 5)) + 0.3 * rng.normal(size=(4, 5))
    control = rng.normal(size=5)
    found = compare_conditions(crossed(table), condition(list(control)))
    differences = table - control
    pretraining = 5 * ((table.mean(axis=1) - table.mean()) ** 2).sum() / 3
    seeds = 4 * ((differences.mean(axis=0) - differences.mean()) ** 2).sum() / 4
    rest = ((table - table.mean(axis=1)[:, None] - table.mean(axis=0) + table.mean()) ** 2).sum() / 12
    variance = seeds / 20 + (pretraining - rest) / 20
    assert found.standard_error == pytest.approx(math.sqrt(variance))
    spent = (seeds / 20) ** 2 / 4 + ((pretraining - rest) / 20) ** 2 / 3
    assert found.degrees_of_freedom == pytest.approx(variance**2 / spent)
    assert found.scope == "this recipe"


def test_pretrainings_with_seeds_of_their_own_are_one_draw_each() -> None:
    rng = np.random.default_rng(2)
    values, controls = rng.normal(size=(3, 2)), rng.normal(size=6)
    nested = Condition(tuple(Score(values[p, f], 2 * p + f, f"run/{p}") for p in range(3) for f in range(2)))
    found = compare_conditions(nested, condition(list(controls)))
    differences = values.mean(axis=1) - controls.reshape(3, 2).mean(axis=1)
    assert found.paired
    assert found.standard_error == pytest.approx(differences.std(ddof=1) / math.sqrt(3))
    assert found.degrees_of_freedom == pytest.approx(2)


def test_pretrainings_that_share_one_finetuning_seed_have_no_verdict() -> None:
    found = compare_conditions(crossed(np.array([[0.7], [0.8], [0.9]])), condition([0.5, 0.6]))
    assert found.verdict == "one seed, no spread"
    partly = Condition((Score(0.7, 0, "a"), Score(0.8, 1, "a"), Score(0.75, 1, "b"), Score(0.9, 2, "b")))
    assert compare_conditions(partly, condition([0.5, 0.6])).verdict == "one seed, no spread"
    with refuses(ValueError, "seed"):
        Condition((Score(0.1, 0, "a"), Score(0.2, 0, "a")))


def with_examples(
    scores: np.ndarray, name: str | None, *, clusters: np.ndarray | None = None, ids: np.ndarray | None = None
) -> Condition:
    made = tuple(Score(float(row.mean()), seed, name) for seed, row in enumerate(scores))
    return Condition(made, Examples(scores, np.arange(scores.shape[1]) if ids is None else ids, clusters))


def test_the_luck_of_the_examples_is_what_a_bootstrap_over_them_comes_to() -> None:
    rng = np.random.default_rng(4)
    num = 300
    hardness = rng.normal(size=num)
    one, other = (hardness + rng.normal(size=num) + 1e-3 * rng.normal(size=(5, num)) for _ in range(2))
    found = compare_conditions(with_examples(one, "a"), with_examples(other, None))
    draws = rng.integers(num, size=(20_000, num))
    bootstrap = (one - other).mean(axis=0)[draws].mean(axis=1).std()
    assert found.standard_error == pytest.approx(bootstrap, rel=0.03)
    assert found.degrees_of_freedom is not None
    assert found.degrees_of_freedom > 250
    assert found.counts_examples
    # unpaired seeds give the same result, because the examples are the same
    apart = compare_conditions(unpaired(with_examples(one, "a")), unpaired(with_examples(other, None)))
    assert apart.standard_error == pytest.approx(bootstrap, rel=0.03)


def test_examples_of_one_passage_are_drawn_together() -> None:
    rng = np.random.default_rng(5)
    clusters = np.repeat(np.arange(40), rng.integers(1, 9, size=40))
    num = len(clusters)
    one = rng.normal(size=40)[clusters] + 0.2 * rng.normal(size=num) + 1e-3 * rng.normal(size=(3, num))
    other = 1e-3 * rng.normal(size=(3, num))
    found = compare_conditions(
        with_examples(one, "a", clusters=clusters), with_examples(other, None, clusters=clusters)
    )
    apart = compare_conditions(with_examples(one, "a"), with_examples(other, None))
    members = [np.flatnonzero(clusters == name) for name in range(40)]
    means = (one - other).mean(axis=0)
    drawn = [means[np.concatenate([members[name] for name in rng.integers(40, size=40)])].mean() for _ in range(4000)]
    assert found.standard_error == pytest.approx(np.std(drawn), rel=0.08)
    assert apart.standard_error is not None
    assert found.standard_error is not None
    assert found.standard_error > 1.5 * apart.standard_error


def test_the_luck_of_examples_in_one_run_is_counted_once() -> None:
    """If nothing else varies, the seeds' spread contains all of it; counted twice, the variance would double."""
    rng = np.random.default_rng(6)
    errors = []
    for _ in range(200):
        one, other = rng.normal(size=(5, 400)), rng.normal(size=(5, 400))
        errors.append(compare_conditions(with_examples(one, "a"), with_examples(other, None)).standard_error)
    assert 1.0 < np.mean(np.square(errors)) / (2 / (5 * 400)) < 1.3


def test_columns_are_matched_by_id_and_what_cannot_be_counted_is_said() -> None:
    rng = np.random.default_rng(7)
    one, other = rng.normal(size=(3, 50)), rng.normal(size=(3, 50))
    order = rng.permutation(50)
    wanted = compare_conditions(with_examples(one, "a"), with_examples(other, None))
    shuffled = with_examples(other[:, order], None, ids=np.arange(50)[order])
    assert compare_conditions(with_examples(one, "a"), shuffled).standard_error == pytest.approx(wanted.standard_error)
    assert wanted.notes == ()
    elsewhere = compare_conditions(with_examples(one, "a"), with_examples(other, None, ids=np.arange(50) + 7))
    (note,) = elsewhere.notes
    assert "examples" in note
    assert note != NO_PREDICTIONS
    none = compare_conditions(with_examples(one, "a"), replace(with_examples(other, None), examples=None))
    assert none.notes == (NO_PREDICTIONS,)
    assert not none.counts_examples
    assert none.standard_error == pytest.approx(elsewhere.standard_error)
    off = replace(with_examples(one, "a"), scores=tuple(Score(0.5 + seed, seed, "a") for seed in range(3)))
    assert "mean" in compare_conditions(off, with_examples(other, None)).notes[0]


def test_misshapen_arms_are_refused() -> None:
    with refuses(ValueError, "score"):
        Condition(())
    with refuses(ValueError, "examples", "2", "1"):
        Condition((Score(0.1, 0),), Examples(np.zeros((2, 3)), np.arange(3)))


def constant(value: float, contributions: np.ndarray | None = None) -> Condition:
    examples = None if contributions is None else Examples(contributions[None], np.arange(len(contributions)))
    return Condition((Score(value, 0, "a"),), examples, constant=True)


def test_seeds_against_a_constant_are_students_test_of_one_sample() -> None:
    values = [0.71, 0.74, 0.69, 0.75, 0.72]
    reference = scipy.stats.ttest_1samp(values, 0.68)
    for one, other, sign in (
        (condition(values), constant(0.68), 1),
        (constant(0.68), condition(values), -1),
        (condition(values), Condition(tuple(Score(0.68, seed) for seed in range(5)), constant=True), 1),
    ):
        found = compare_conditions(one, other)
        assert found.delta == pytest.approx(sign * (np.mean(values) - 0.68))
        assert found.p_value == pytest.approx(reference.pvalue)
        assert found.verdict == ("better" if sign > 0 else "worse")
        assert 0 in found.num_seeds
        assert found.seeds_needed is not None
    assert compare_conditions(condition([0.7]), constant(0.6)).verdict == "one seed, no spread"


def test_two_constants_are_judged_by_the_examples_alone() -> None:
    rng = np.random.default_rng(0)
    one, other = (rng.random(400) < 0.8).astype(float), (rng.random(400) < 0.6).astype(float)
    reference = scipy.stats.ttest_rel(one, other)
    found = compare_conditions(constant(one.mean(), one), constant(other.mean(), other))
    assert found.p_value == pytest.approx(reference.pvalue, rel=1e-6)
    assert (found.verdict, found.num_seeds, found.seeds_needed) == ("better", (0, 0), None)
    assert compare_conditions(constant(0.8), constant(0.7)).verdict == "no examples"
