"""Reading times, age of acquisition and forms of invented words, compared with scikit-learn and scipy."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import PolynomialFeatures
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.tasks.zero_shot.acquisition import AgeOfAcquisition, age_of_half, point_of_learning
from lmtransfer.tasks.zero_shot.reading import Reading, variance_explained
from lmtransfer.tasks.zero_shot.task import Completion, CompletionScores, ModelFacts
from lmtransfer.tasks.zero_shot.word_forms import WordFormPreference

AGES = np.arange(16.0, 31.0)


def test_the_age_of_half_is_the_middle_of_a_logistic_curve() -> None:
    for middle in (18.0, 22.5, 27.0):
        shares = 1 / (1 + np.exp(-0.6 * (AGES - middle)))
        assert age_of_half(AGES, shares) == pytest.approx(middle, abs=0.01)
    assert age_of_half(AGES, np.full(15, 0.1)) is None
    assert age_of_half(AGES, np.where(AGES < 18, 0.2, np.nan)) is None  # two points


def test_a_word_is_learned_halfway_between_uniform_and_its_best() -> None:
    words = np.array([10**power for power in np.linspace(4, 8, 20)])
    uniform = float(np.log(1000))
    for middle in (5.2, 6.0, 6.8):
        surprisals = uniform - (uniform - 2.0) / (1 + np.exp(-4 * (np.log10(words) - middle)))
        level = (uniform + surprisals.min()) / 2
        exact = middle - np.log((uniform - 2.0) / (uniform - level) - 1) / 4
        assert point_of_learning(words, surprisals, uniform) == pytest.approx(exact, abs=0.01)
    assert point_of_learning(words, np.full(20, 3.0), uniform) is None
    assert point_of_learning(words[:2], np.array([5.0, 2.0]), uniform) is None


def _task(folder: Path, ages: dict[str, float]) -> AgeOfAcquisition:
    contexts = {word: [{"context": " the "}, {"context": "a red"}] for word in ages}
    (folder / "cdi_childes.json").write_text(json.dumps({**contexts, "I": [{"context": "x"}]}))
    rows = [
        f"{word},{','.join(f'{1 / (1 + np.exp(-0.6 * (age - middle))):.4f}' for age in AGES)}"
        for word, middle in ages.items()
    ]
    (folder / "cdi_human.csv").write_text("\n".join([f"word,{','.join(f'{age:.0f}' for age in AGES)}", *rows]) + "\n")
    return AgeOfAcquisition(name="age_of_acquisition", folder=str(folder))


def test_a_model_that_learns_in_the_childrens_order_correlates(tmp_path: Path) -> None:
    ages = {"ball": 18.0, "dog": 20.0, "milk": 22.0, "truth": 26.0, "walk": 24.0}
    task = _task(tmp_path, ages)
    items = task.examples("test")
    assert [item.word for item in items] == [word for word in ages for _ in range(2)]  # single letters are left out
    assert task.completions(items[1]) == [Completion("a red ball", 6)]
    words = [round(10**power) for power in np.linspace(4, 8, 20)]
    uniform = float(np.log(1000))

    def scores(sign: float) -> list[CompletionScores]:
        return [
            CompletionScores(
                [np.array([-uniform + (uniform - 2) / (1 + np.exp(-4 * (np.log10(read) - middle)))])], [np.zeros(1)], []
            )
            for read in words
            for item in items
            for middle in [6 + sign * (ages[item.word] - 22) / 4]
        ]

    assert task.evaluate(items, scores(1), ModelFacts(1000, words=words)).metrics["correlation"] > 0.99
    opposite = task.evaluate(items, scores(-1), ModelFacts(1000, words=words))
    assert opposite.metrics["correlation"] < -0.99
    assert opposite.more["num_words"] == 5
    lines = opposite.files["acquisition.jsonl"].splitlines()
    assert len(lines) == len(words) * len(items)
    assert json.loads(lines[-1])["words_read"] == words[-1]


def test_too_few_words_have_no_correlation(tmp_path: Path) -> None:
    task = _task(tmp_path, {"ball": 18.0, "dog": 20.0})
    items = task.examples("test")
    scores = [CompletionScores([np.array([-1.0])], [np.zeros(1)], []) for _ in range(3 * len(items))]
    found = task.evaluate(items, scores, ModelFacts(1000, words=(1, 2, 3)))
    assert found.metrics == {"correlation": 0.0, "challenge_score": 0.0}


def test_other_files_are_refused(tmp_path: Path) -> None:
    task = _task(tmp_path, {"ball": 18.0})
    (tmp_path / "cdi_childes.json").write_text('{"ball": [{"text": "x"}]}')
    with refuses(DataError, "cdi_childes.json", "context"):
        task.examples("test")
    with refuses(DataError, "cdi_childes.json"):
        AgeOfAcquisition(name="age_of_acquisition", folder=str(tmp_path / "none")).examples("test")


COLUMNS = (
    "item,word,prev_item,prev_word,Subtlex_log10,length,context_length,prev_length,RTfirstfix,RTfirstpass,RTgopast,"
    "RTrightbound,self_paced_reading_time"
)


def _r_squared(times: np.ndarray, covariates: np.ndarray, surprisal: np.ndarray | None) -> float:
    design = PolynomialFeatures(2, interaction_only=True, include_bias=False).fit_transform(covariates)
    if surprisal is not None:
        design = np.column_stack([design, surprisal])
    return LinearRegression().fit(design, times).score(design, times)


def test_variance_explained_is_that_of_two_linear_regressions() -> None:
    rng = np.random.default_rng(0)
    covariates, surprisal = rng.normal(size=(300, 3)) * [2, 30, 5] + 10, rng.gamma(2, 3, 300)
    times = 200 + covariates @ [3, 0.5, -2] + 0.02 * covariates[:, 0] * covariates[:, 1] + 2 * surprisal
    times += rng.normal(0, 20, 300)
    baseline, full = _r_squared(times, covariates, None), _r_squared(times, covariates, surprisal)
    found = variance_explained(times, list(covariates.T), surprisal)
    assert found == pytest.approx((full - baseline) / (1 - baseline), rel=1e-6)
    holes = times.copy()
    holes[::7] = np.nan
    rows = np.isfinite(holes)
    assert variance_explained(holes, list(covariates.T), surprisal) == pytest.approx(
        variance_explained(times[rows], list(covariates[rows].T), surprisal[rows])
    )


def _table(path: Path, rows: list[str]) -> Reading:
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return Reading(name="reading", file=str(path))


def test_a_word_is_scored_after_its_context_and_so_is_the_word_before_it(tmp_path: Path) -> None:
    rows = ["Her,dog,,,3.1,3,1,,200,210,220,230,", "Her dog, barked,Her,dog,2.0,6,2,3,250,,260,270,300"]
    rows += [f"Her,dog,Her,dog,2.0,6,2,3,{time},{time},{time},{time},{time}" for time in range(20)]
    task = _table(tmp_path / "reading.csv", rows)
    first, second, *_ = task.examples("test")
    assert task.completions(first) == [Completion("Her dog", 3)]
    assert task.completions(second) == [Completion("Her dog barked", 7), Completion("Her dog", 3)]
    assert task.hidden == "following"


def test_surprisals_that_drive_the_times_explain_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    surprisals = rng.gamma(2, 3, 200)
    numbers = [
        (*rng.normal(3, 1, 1).round(3), *rng.integers(2, 9, 3), *(200 + 10 * bits + rng.normal(0, 1, 5)).round(2))
        for bits in surprisals
    ]
    task = _table(tmp_path / "reading.csv", [f"a b,c,a,b,{','.join(map(str, row))}" for row in numbers])
    items = task.examples("test")
    scores = [CompletionScores([np.array([-bits / 2, -bits / 2]), np.array([-1.0])], [], []) for bits in surprisals]
    found = task.evaluate(items, scores, ModelFacts(8))
    assert found.metrics["eye_tracking"] > 0.99
    assert found.metrics["self_paced"] > 0.99
    noise = [CompletionScores([np.array([-bits]), np.array([-1.0])], [], []) for bits in rng.permutation(surprisals)]
    assert task.evaluate(items, noise, ModelFacts(8)).metrics["eye_tracking"] < 0.1


def test_other_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("word,length\nx,1\n")
    with refuses(DataError, "a.csv:1", "'item'", "word, length"):
        Reading(name="reading", file=str(tmp_path / "a.csv")).examples("test")
    with refuses(DataError, "task.file", "missing.csv"):
        Reading(name="reading", file="missing.csv").examples("test")


def test_the_metric_is_the_mean_of_the_files_correlations(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ratios = {name: rng.random(30) for name in ("adjectives", "verbs")}
    for name, values in ratios.items():
        lines = [
            json.dumps({"sentences": f"a {name}{n}ity\ta {name}{n}ness", "ratio": r}) for n, r in enumerate(values)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    task = WordFormPreference(name="wug", folder=str(tmp_path))
    items = task.examples("test")
    assert task.completions(items[31]) == [Completion("a verbs1ity"), Completion("a verbs1ness")]
    logs = rng.normal(-40, 3, (60, 2))
    scores = [CompletionScores([np.array([first]), np.array([second])], [], []) for first, second in logs]
    preferences = softmax(logs, axis=1)[:, 0]
    wanted = [
        float(stats.spearmanr(preferences[part], values).statistic)
        for part, values in zip((slice(0, 30), slice(30, 60)), ratios.values(), strict=True)
    ]
    found = task.evaluate(items, scores, ModelFacts(8)).metrics
    assert found["spearman"] == pytest.approx(np.mean(wanted))
    assert found["file/verbs/spearman"] == pytest.approx(wanted[1])


def test_other_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for line, said in (('{"sentences": "one", "ratio": 1}', "tab"), ('{"sentences": "a\\tb"}', "ratio")):
        path.write_text(line + "\n")
        with refuses(DataError, "a.jsonl:1", said):
            WordFormPreference(name="wug", folder=str(path)).examples("test")
    with refuses(DataError, "no .jsonl files"):
        WordFormPreference(name="wug", folder=str(tmp_path / "none")).examples("test")


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_files_without_items_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with refuses(DataError, "a.jsonl", "no items"):
        WordFormPreference(name="wug", folder=str(tmp_path)).examples("test")


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (r'{"sentences": "a\ud800\tb", "ratio": 1}', ("sentences", "surrogate")),
        ('{"sentences": "a\\t ", "ratio": 1}', ("sentences", "two sentences")),
        ('{"sentences": ["a", "b"], "ratio": 1}', ("sentences", "must be text")),
        ('{"sentences": "a\\tb", "ratio": "1"}', ("ratio", "a finite number")),
        ('{"sentences": "a\\tb", "ratio": NaN}', ("ratio", "a finite number")),
        ("[1]", ("a JSON object",)),
    ],
)
def test_other_values_of_word_forms_are_named(line: str, names: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"sentences": "a\\tb", "ratio": 1}\n' + line + "\n")
    with refuses(DataError, "a.jsonl:2", *names):
        WordFormPreference(name="wug", folder=str(tmp_path)).examples("test")


def test_a_correlation_that_is_undefined_is_said(tmp_path: Path) -> None:
    for name, ratios in (("one", [0.3]), ("equal", [0.5, 0.5, 0.5]), ("both", [0.1, 0.9])):
        lines = [json.dumps({"sentences": f"a\tb{number}", "ratio": ratio}) for number, ratio in enumerate(ratios)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    task = WordFormPreference(name="wug", folder=str(tmp_path))
    items = task.examples("test")
    scores = [CompletionScores([np.array([-1.0 * place]), np.array([-1.0])], [], []) for place in range(len(items))]
    found = task.evaluate(items, scores, ModelFacts(8))
    assert found.metrics["file/both/spearman"] == pytest.approx(-1)
    assert found.metrics["spearman"] == pytest.approx(-1 / 3)
    assert [note.split()[3] for note in found.notes[1:]] == ["equal", "one"]


def _rows(count: int, *, time: str = "{}") -> list[str]:
    rng = np.random.default_rng(0)
    numbers = [[round(value, 3) for value in rng.uniform(1, 9, 9)] for _ in range(count)]
    return [
        f"a b,c,a,b,{','.join(map(str, row[:4]))},{','.join(time.format(value) for value in row[4:])}"
        for row in numbers
    ]


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([], ("RTfirstfix", "at least 9", "0 such rows")),
        (_rows(1), ("RTfirstfix", "at least 9", "1 such rows")),
        (_rows(12), ("self_paced_reading_time", "at least 18", "12 such rows")),
        (_rows(30, time="250"), ("RTfirstfix", "are equal")),
        ([*_rows(20), "a,b,a,b,x,1,1,1,1,1,1,1,1"], (":22", "Subtlex_log10", "'x'", "finite number")),
        ([*_rows(20), "a,b,a,b,1,1,1,1,1,1,inf,1,1"], (":22", "RTgopast", "'inf'")),
        ([*_rows(3), "a,b"], (":5", "2 columns")),
        ([*_rows(3), "a,b,a,b,1,1,1,1,1,1,1,1,1,1"], (":5", "14 columns")),
        ([*_rows(3), "a, ,a,b,1,1,1,1,1,1,1,1,1"], (":5", "the word is missing")),
    ],
)
def test_tables_without_enough_numbers_are_refused(rows: list[str], names: tuple[str, ...], tmp_path: Path) -> None:
    with refuses(DataError, "reading.csv", *names):
        _table(tmp_path / "reading.csv", rows).examples("test")


def test_a_baseline_that_explains_everything_leaves_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    covariates, surprisal = rng.normal(size=(40, 3)), rng.normal(size=40)
    assert variance_explained(covariates @ [1.0, 2, 3], list(covariates.T), surprisal) == 0


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("r.csv", lambda text: ("\ufeff" + text.replace("\n", "\r\n")).encode()),
        ("r.csv", lambda text: text.replace("\n", "\r").encode()),
        ("r.csv", lambda text: ("sep=;\n" + text.replace(",", ";")).encode()),
        ("r.tsv", lambda text: text.replace(",", "\t").encode()),
        ("R.CSV.GZ", lambda text: gzip.compress(text.encode())),
        ("r.csv", lambda text: "\n".join(f"{line},," for line in text.splitlines()).encode()),
    ],
    ids=["excel", "old mac", "named separator", "tabs", "compressed", "unnamed columns"],
)
def test_reading_times_have_the_forms_of_all_tables(name: str, write: Callable[[str], bytes], tmp_path: Path) -> None:
    plain = _table(tmp_path / "plain.csv", _rows(20)).examples("test")
    (tmp_path / name).write_bytes(write((tmp_path / "plain.csv").read_text()))
    assert Reading(name="reading", file=str(tmp_path / name)).examples("test") == plain


@pytest.mark.parametrize(
    ("words", "children", "names"),
    [
        ("{}", "word,16,17,18\na,0,0.5,1\n", ("cdi_childes.json", "no words")),
        (r'{"b\ud800": [{"context": "a"}]}', "word,16\na,0\n", ("cdi_childes.json", "surrogate")),
        ('{"ball": {"context": "a"}}', "word,16\na,0\n", ("cdi_childes.json: ball", "a list")),
        ('{"ball": [{"context": "a"}]}', "word,16,17\nball,0,half\n", ("cdi_human.csv:2", "17", "'half'")),
        ('{"ball": [{"context": "a"}]}', "word,x\nball,0\n", ("cdi_human.csv", "16 to 30")),
        ('{"ball": [{"context": "a"}]}', "name,16\nball,0\n", ("cdi_human.csv:1", "'word'", "name, 16")),
        ('{"ball": [{"context": "a"}]}', "", ("cdi_human.csv", "16 to 30")),
    ],
)
def test_other_files_of_words_and_ages(words: str, children: str, names: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "cdi_childes.json").write_text(words)
    (tmp_path / "cdi_human.csv").write_text(children)
    with refuses(DataError, *names):
        AgeOfAcquisition(name="age_of_acquisition", folder=str(tmp_path)).examples("test")
