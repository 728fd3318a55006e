"""Log-probabilities: against published models one text and one mask at a time, and closed forms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes.objectives import NumberTokenizer, backward_elmo, bert, elmo, gpt
from support.peer_tensors import heads_to_ours, to_ours
from support.refusals import refuses

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.completions import CompletionScorer
from lmtransfer.inference.pretrained import Frame, masked_predictor, token_predictor
from lmtransfer.interop.families.bert import BERT, BERT_FAMILY, IGNORED
from lmtransfer.interop.families.gpt import GPT2
from lmtransfer.interop.families.gpt import IGNORED as IGNORED_GPT2
from lmtransfer.interop.families.xlnet import XLNET
from lmtransfer.models.bert import BertEncoder
from lmtransfer.models.elmo import ElmoEncoder
from lmtransfer.models.gpt import GptEncoder
from lmtransfer.models.xlnet import XlnetEncoder
from lmtransfer.objectives.base import Objective, Softmax
from lmtransfer.objectives.language_model import BackwardLanguageModel, BidirectionalLanguageModel, LanguageModel
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.pair_label import NextSentencePrediction
from lmtransfer.objectives.permutation_lm import PermutationLanguageModel
from lmtransfer.tasks.zero_shot.surprisal import Passage, word_surprisals
from lmtransfer.tasks.zero_shot.task import Completion
from lmtransfer.tokenizers.words import WordTokenizer

TOKENIZER = NumberTokenizer()
CLS, SEP, MASK = TOKENIZER.cls_id, TOKENIZER.sep_id, TOKENIZER.mask_id
FRAMED: Any = SimpleNamespace(frame="both")
SIZES: dict[str, Any] = {"dim": 32, "num_layers": 2, "num_heads": 2, "hidden_dim": 64, "max_length": 40}


def _sentences(num: int = 9) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(4, 90, rng.integers(1, 13)).tolist() for _ in range(num)]


SENTENCES = _sentences()


def _scorer(learner: PretrainingLearner, *, rows: Any = FRAMED, **changes: Any) -> CompletionScorer:
    encoder: Any = learner.encoder
    return CompletionScorer(
        predictor=token_predictor(learner.eval()),
        tokenizer=TOKENIZER,
        frame=Frame(tokenizer=TOKENIZER, encoder=encoder, rows=rows),
        **changes,
    )


def _scored(learner: PretrainingLearner, **changes: Any) -> list[float]:
    texts = [" ".join(map(str, sentence)) for sentence in SENTENCES]
    return _logs(_scorer(learner, **changes), texts).tolist()


def _logs(scorer: CompletionScorer, texts: list[str]) -> np.ndarray:
    return scorer.score([Completion(text) for text in texts])[0].log_probabilities


def _stirred(peer: Any) -> Any:
    """Weights that hide nothing behind zeros and ones."""
    for parameter in peer.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return peer.eval()


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def berts(transformers: Any) -> tuple[Any, PretrainingLearner]:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=96,
        max_position_embeddings=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.1,
    )
    peer = _stirred(transformers.BertForPreTraining(config))
    learner = PretrainingLearner(
        BertEncoder(vocab_size=96, **SIZES), [NextSentencePrediction(), MaskedLanguageModel()]
    ).eval()
    published = peer.state_dict()
    body = {name.removeprefix("bert."): tensor for name, tensor in published.items() if name.startswith("bert.")}
    heads = {name: tensor for name, tensor in published.items() if not name.startswith("bert.")}
    learner.encoder.load_state_dict(to_ours(body, BERT, ignore=IGNORED))
    learner.objectives.load_state_dict(heads_to_ours(heads, BERT_FAMILY))
    return peer, learner


def _pseudo_log_likelihood(peer: Any, sentence: list[int], *, rest_of_word: bool) -> float:
    """One token and one pass at a time."""
    total = 0.0
    for place, token in enumerate(sentence):
        ids = [CLS, *sentence, SEP]
        ids[1 + place] = MASK
        for later in range(place + 1, len(sentence) if rest_of_word else 0):
            if sentence[later] % 2 == 0:  # even numbers begin words
                break
            ids[1 + later] = MASK
        logits = peer(torch.tensor([ids])).prediction_logits[0, 1 + place]
        total += float(logits.log_softmax(-1)[token])
    return total


@pytest.mark.parametrize("rest_of_word", [False, True])
@pytest.mark.parametrize("batch_tokens", [40, 8192])
def test_pseudo_log_likelihood_is_that_of_a_loop_over_the_peer(
    berts: tuple[Any, PretrainingLearner], rest_of_word: bool, batch_tokens: int
) -> None:
    peer, learner = berts
    with torch.no_grad():
        wanted = [_pseudo_log_likelihood(peer, sentence, rest_of_word=rest_of_word) for sentence in SENTENCES]
    hidden: Any = "rest_of_word" if rest_of_word else "token"
    found = _scored(learner, hidden=hidden, batch_tokens=batch_tokens)
    assert found == pytest.approx(wanted, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize("batch_tokens", [40, 8192])
def test_completions_are_scored_after_their_prefixes(berts: tuple[Any, PretrainingLearner], batch_tokens: int) -> None:
    """Only the completion's tokens are masked and summed; a token that ends in the prefix is not among them."""
    peer, learner = berts
    wanted, texts, starts = [], [], []
    for number, sentence in enumerate(SENTENCES):
        first = number % len(sentence)
        total = 0.0
        for place in range(first, len(sentence)):
            ids = [CLS, *sentence, SEP]
            ids[1 + place] = MASK
            with torch.no_grad():
                logits = peer(torch.tensor([ids])).prediction_logits[0, 1 + place]
            total += float(logits.log_softmax(-1)[sentence[place]])
        wanted.append(total)
        texts.append(" ".join(map(str, sentence)))
        starts.append(len(" ".join(map(str, sentence[:first]))))
    scores, _ = _scorer(learner, batch_tokens=batch_tokens).score(list(map(Completion, texts, starts)))
    assert scores.log_probabilities.tolist() == pytest.approx(wanted, abs=1e-5, rel=1e-5)
    lengths = [len(sentence) - number % len(sentence) for number, sentence in enumerate(SENTENCES)]
    means = [total / length for total, length in zip(wanted, lengths, strict=True)]
    assert scores.per_token().tolist() == pytest.approx(means, abs=1e-5, rel=1e-5)


def test_masked_next_token_prediction_is_scored_from_the_place_before_the_mask() -> None:
    torch.manual_seed(1)
    learner = PretrainingLearner(bert(), [MaskedLanguageModel(predict="next")]).eval()
    _stirred(learner)
    head: Any = learner.objective_list()[0]
    encoder: Any = learner.encoder
    wanted = []
    for sentence in SENTENCES:
        total = 0.0
        for place, token in enumerate(sentence):
            ids = np.array([CLS, *sentence, SEP])
            ids[1 + place] = MASK
            with torch.no_grad():
                logits = head.token_logits(encoder(pack([ids])).last)[place]
            total += float(logits.log_softmax(-1)[token])
        wanted.append(total)
    assert _scored(learner) == pytest.approx(wanted, abs=1e-5, rel=1e-5)


def test_surprisals_of_words_add_up_those_of_their_tokens() -> None:
    passage = Passage("a:1", "The  cat's\u00a0here. ")
    spans = np.array([[0, 3], [3, 8], [8, 9], [9, 10], [10, 15], [15, 16], [16, 17]])
    logs = -np.log(2) * np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    assert passage.words == [(0, 3), (5, 10), (11, 16)]
    # The last token is the space at the end, which belongs to the word before it.
    assert word_surprisals(passage, logs, spans).tolist() == pytest.approx([1.0, 14.0, 112.0])


def test_what_is_hidden_with_a_token_matters(berts: tuple[Any, PretrainingLearner]) -> None:
    alone, with_rest = (_scored(berts[1], hidden=hidden) for hidden in ("token", "rest_of_word"))
    differ = [abs(one - other) > 1e-4 for one, other in zip(alone, with_rest, strict=True)]
    assert differ == [any(token % 2 for token in sentence[1:]) for sentence in SENTENCES]


@pytest.mark.parametrize(("frame", "first"), [("start", CLS), ("both", CLS), ("none", SEP)])
def test_causal_log_probability_is_that_of_a_loop_over_the_peer(transformers: Any, frame: str, first: int) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=96, n_positions=40, n_embd=32, n_layer=2, n_head=2, n_inner=64, initializer_range=0.1
    )
    peer = _stirred(transformers.GPT2LMHeadModel(config))
    encoder = GptEncoder(vocab_size=96, **SIZES)
    encoder.load_state_dict(to_ours(peer.transformer.state_dict(), GPT2, ignore=IGNORED_GPT2))
    wanted = []
    with torch.no_grad():
        for sentence in SENTENCES:
            logs = peer(torch.tensor([[first, *sentence]])).logits[0].log_softmax(-1)
            wanted.append(sum(float(logs[place, token]) for place, token in enumerate(sentence)))
    learner = PretrainingLearner(encoder, [LanguageModel()])
    for batch_tokens in (30, 8192):
        found = _scored(learner, rows=SimpleNamespace(frame=frame), batch_tokens=batch_tokens)
        assert found == pytest.approx(wanted, abs=1e-5, rel=1e-5)


def test_pseudo_log_likelihood_by_xlnet_is_that_of_a_loop_over_the_peer(transformers: Any) -> None:
    torch.manual_seed(0)
    config = transformers.XLNetConfig(vocab_size=96, d_model=32, n_layer=2, n_head=2, d_inner=64, dropout=0.0)
    peer = _stirred(transformers.XLNetLMHeadModel(config))
    encoder = XlnetEncoder(vocab_size=96, **SIZES)
    encoder.load_state_dict(to_ours(peer.transformer.state_dict(), XLNET))
    learner = PretrainingLearner(encoder, [PermutationLanguageModel()])
    learner.objectives["plm"].bias.data.copy_(peer.lm_loss.bias.data)
    wanted = []
    with torch.no_grad():
        for sentence in SENTENCES:
            total = 0.0
            for place, token in enumerate(sentence, start=1):
                ids = torch.tensor([[CLS, *sentence, SEP]])
                hides, asked = torch.zeros(1, ids.shape[1], ids.shape[1]), torch.zeros(1, 1, ids.shape[1])
                hides[0, :, place], asked[0, 0, place] = 1.0, 1.0
                logits = peer(ids, perm_mask=hides, target_mapping=asked).logits[0, 0]
                total += float(logits.log_softmax(-1)[token])
            wanted.append(total)
    assert _scored(learner, batch_tokens=64) == pytest.approx(wanted, abs=1e-5, rel=1e-5)


def _by_hand(learner: PretrainingLearner, width: int, *, forward: bool) -> list[float]:
    """One direction, one sentence at a time; its features are the first or the last ``width``."""
    encoder: Any = learner.encoder
    (objective,) = learner.objectives.values()
    output: Any = getattr(objective, "output", None)
    weight = encoder.token_embedding.weight if output is None else output.weight
    bias = 0.0 if output is None else output.bias
    found = []
    with torch.no_grad():
        for sentence in SENTENCES:
            last = encoder(pack([np.array([CLS, *sentence, SEP])])).last
            half = last[:, :width] if forward else last[:, -width:]
            logs = (half @ weight.T + bias).log_softmax(-1)
            step = 0 if forward else 2
            found.append(sum(float(logs[place + step, token]) for place, token in enumerate(sentence)))
    return found


def test_two_directions_score_by_their_mean() -> None:
    learner = PretrainingLearner(elmo(), [BidirectionalLanguageModel()]).eval()
    learner.objectives["bilm"].output.bias.data.normal_()
    directions = [_by_hand(learner, 16, forward=forward) for forward in (True, False)]
    assert _scored(learner, batch_tokens=30) == pytest.approx(np.mean(directions, axis=0).tolist(), abs=1e-5, rel=1e-5)


def test_backward_log_probability_is_that_of_a_loop() -> None:
    learner = PretrainingLearner(backward_elmo(), [BackwardLanguageModel()]).eval()
    wanted = _by_hand(learner, 16, forward=False)
    assert _scored(learner, batch_tokens=30) == pytest.approx(wanted, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize("hidden", ["token", "rest_of_word"])
def test_a_unigram_model_gives_the_sum_of_its_unigrams(hidden: str) -> None:
    """Without embeddings only the bias is left, whatever the context."""
    shares = np.random.default_rng(1).dirichlet(np.ones(96))
    wanted = [float(np.log(shares[sentence]).sum()) for sentence in SENTENCES]
    uniform = [-len(sentence) * float(np.log(96)) for sentence in SENTENCES]
    made: list[tuple[Any, Any]] = [(bert(), MaskedLanguageModel()), (elmo(), BidirectionalLanguageModel())]
    for encoder, objective in made:
        learner = PretrainingLearner(encoder, [objective])
        head = getattr(objective, "output", objective)
        with torch.no_grad():
            encoder.token_embedding.weight.zero_()
            if getattr(head, "own", None) is not None:
                head.own.weight.zero_()
            head.bias.copy_(torch.from_numpy(np.log(shares)) + 3.0)
        assert _scored(learner, hidden=hidden) == pytest.approx(wanted, rel=1e-5)
    causal = PretrainingLearner(gpt(), [LanguageModel()])
    with torch.no_grad():
        causal.encoder.embeddings.token.weight.zero_()
    assert _scored(causal) == pytest.approx(uniform, rel=1e-5)


class _Recording(Objective):
    """An objective that notes what it is asked, and finds all ids alike."""

    name = "recording"
    directions = ("bidirectional",)

    def __init__(self, *, hides: bool) -> None:
        super().__init__()
        self.predicts = "masked" if hides else "unmasked"
        self.asked: list[PackedBatch] = []

    def predict(self, packed: PackedBatch, positions_M: np.ndarray, *, mask_id: int) -> list[Softmax]:
        self.asked.append(packed)
        return [Softmax(torch.zeros(len(positions_M), 4), torch.zeros(96, 4))]


def _recorded(predictor: _Recording, texts: list[str], tokenizer: Any = TOKENIZER, **changes: Any) -> np.ndarray:
    encoder: Any = SimpleNamespace(max_length=40)
    frame = Frame(tokenizer=tokenizer, encoder=encoder, rows=FRAMED)
    scorer = CompletionScorer(predictor=predictor, tokenizer=tokenizer, frame=frame, **changes)
    return _logs(scorer, texts)


def test_no_batch_has_more_tokens_than_it_may() -> None:
    rng = np.random.default_rng(2)
    texts = [" ".join(map(str, rng.integers(4, 90, rng.integers(0, 14)))) for _ in range(60)]
    for hides in (False, True):
        predictor = _Recording(hides=hides)
        found = _recorded(predictor, texts, batch_tokens=64)
        assert all(packed.num_tokens <= 64 for packed in predictor.asked)
        assert len(predictor.asked) > 5
        assert found == pytest.approx([-len(text.split()) * np.log(96) for text in texts], rel=1e-6)
    assert _recorded(_Recording(hides=True), [""]).tolist() == [0.0]


def test_each_token_is_hidden_once_and_with_the_rest_of_its_word_on_request() -> None:
    def seen(hidden: str) -> list[list[int]]:
        predictor = _Recording(hides=True)
        _recorded(predictor, ["10 11 13 20"], hidden=hidden)
        (packed,) = predictor.asked
        return [row.tolist() for row in packed.tokens_T.split(list(packed.lengths))[: packed.num_real]]

    assert seen("token") == [
        [CLS, MASK, 11, 13, 20, SEP],
        [CLS, 10, MASK, 13, 20, SEP],
        [CLS, 10, 11, MASK, 20, SEP],
        [CLS, 10, 11, 13, MASK, SEP],
    ]
    assert seen("rest_of_word") == [
        [CLS, MASK, MASK, MASK, 20, SEP],
        [CLS, 10, MASK, MASK, 20, SEP],
        [CLS, 10, 11, MASK, 20, SEP],
        [CLS, 10, 11, 13, MASK, SEP],
    ]


def test_sentences_of_the_same_tokens_score_the_same_to_the_last_bit(berts: tuple[Any, PretrainingLearner]) -> None:
    texts = [text for number in range(20) for text in (f"10  {number + 4} 12 13", f"10 {number + 4} 12 13")]
    scores = _logs(_scorer(berts[1], batch_tokens=50), texts)
    assert (scores[::2] == scores[1::2]).all()
    assert len(set(scores)) == 20


def test_words_that_the_vocabulary_lacks_are_read_as_they_are_spelt() -> None:
    tokenizer = WordTokenizer(["the", "sea"], lowercase=False)
    torch.manual_seed(0)
    encoder = ElmoEncoder(
        vocab_size=64, dim=16, num_layers=1, cell_dim=16, char_dim=4, filters=[[1, 4], [2, 4]], num_highway=1
    )
    learner = PretrainingLearner(encoder, [BidirectionalLanguageModel()]).eval()
    frame = Frame(tokenizer=tokenizer, encoder=encoder, rows=FRAMED)
    predictor = token_predictor(learner)
    scorer = CompletionScorer(predictor=predictor, tokenizer=tokenizer, frame=frame)
    texts = ["the red sea", "the blue sea", "the red sea the red"]
    scores = _logs(scorer, texts).tolist()
    assert scores[0] != pytest.approx(scores[1], abs=1e-6)  # both are "the [UNK] sea"
    alone = [_logs(scorer, [text]).item() for text in texts]
    assert scores == pytest.approx(alone, abs=1e-5)


def test_what_cannot_score_is_one_message() -> None:
    pairs_only = PretrainingLearner(bert(), [NextSentencePrediction()])
    with refuses(ConfigError, "(nsp)", "backward_lm", "bilm", "plm", "mlm_nsp"):
        token_predictor(pairs_only)
    with refuses(ConfigError, "(lm)", "[MASK]", "plm", "mlm_nsp"):
        masked_predictor(PretrainingLearner(gpt(), [LanguageModel()]))
    with refuses(DataError, "'4 4 4", "42 tokens", "40", "model.max_length"):
        _recorded(_Recording(hides=False), [" ".join(["4"] * 40)])
