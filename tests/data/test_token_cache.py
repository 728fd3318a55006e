from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from fakes.texts import WordTokenizer, by_noun, made_up_documents, write_text
from support import PYTHONPATH, ROOT
from support.limits import no_privileges
from support.refusals import refuses

from lmtransfer.data import token_cache
from lmtransfer.data.corpora.corpus import FileCorpus
from lmtransfer.data.corpora.sentences import sentence_spans
from lmtransfer.data.token_cache import PreparedCorpus, prepare, tokenizer_for
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import DataError
from lmtransfer.system.machine import default_cache_dir
from lmtransfer.tokenizers.sentencepiece import SentencePieceTokenizer
from lmtransfer.tokenizers.trainers import SentencePieceTrainer


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of about 20 documents, so that a small corpus has many."""
    monkeypatch.setattr(token_cache, "BLOCK_CHARACTERS", 5000)


def corpus(path: Path, **settings: Any) -> FileCorpus:
    return FileCorpus(path=str(path), **{"name": "made up", "validation_fraction": 0.1, **settings})


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of every file of a prepared corpus, without times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            if path == folder / "manifest.json":
                manifest = json.loads(content)
                del manifest["statistics"]["seconds"]
                content = json.dumps(manifest).encode()
            found[str(path.relative_to(folder))] = content
    return found


def token_lists(store: TokenStore) -> list[list[list[int]]]:
    """Documents of sentences of ids, read back from a store."""
    documents = []
    for document in range(store.num_documents):
        first, last = store.document_starts[document : document + 2]
        edges = store.sentence_starts[first : last + 1]
        documents.append([store.tokens(int(a), int(b)).tolist() for a, b in zip(edges[:-1], edges[1:], strict=True)])
    return documents


def expected_lists(texts: Sequence[str], tokenizer: WordTokenizer) -> list[list[list[int]]]:
    return [
        [[tokenizer.word_id(word) for word in text[start:stop].split()] for start, stop in sentence_spans(text)]
        for text in texts
    ]


def test_both_sides_hold_their_documents_in_order(tmp_path: Path) -> None:
    source = corpus(write_text(tmp_path / "a.txt", made_up_documents(300)))
    tokenizer = WordTokenizer()
    prepared = prepare(source, tokenizer, cache_dir=tmp_path / "cache", num_workers=0)
    documents = list(source.documents())
    for held_out, store in ((False, prepared.train), (True, prepared.validation)):
        texts = [document.text for document in documents if source.is_validation(document) == held_out]
        assert token_lists(store) == expected_lists(texts, tokenizer)
    assert prepared.validation.num_documents > 5


def test_statistics(tmp_path: Path) -> None:
    documents = made_up_documents(200)
    documents[7] += " zzz zzz"
    documents += [documents[0], documents[0], documents[150]]
    path = write_text(tmp_path / "a.txt", documents)
    path.write_bytes(path.read_bytes() + b"\n\nnul \x00 here\n")
    documents.append("nul  here")
    source = corpus(path)
    prepared = prepare(source, WordTokenizer(), cache_dir=tmp_path / "cache", num_workers=0)
    found = prepared.statistics
    words = Counter(word for document in documents for word in document.split())
    assert found.documents == len(documents) == 204
    assert found.duplicate_documents == 3
    assert found.words == found.tokens == words.total()
    assert found.unknown_tokens == words["zzz"] == 2
    assert found.unknown_rate == 2 / words.total()
    assert found.text_bytes == sum(len(document.encode()) for document in documents)
    assert found.sentences == sum(len(sentence_spans(document)) for document in documents)
    assert found.validation_tokens == prepared.validation.num_tokens
    assert found.validation_documents == prepared.validation.num_documents
    assert found.tokens == prepared.train.num_tokens + prepared.validation.num_tokens
    assert found.longest_sentence_tokens == max(
        len(document[start:stop].split()) for document in documents for start, stop in sentence_spans(document)
    )
    last_line = path.read_bytes().count(b"\n")
    assert by_noun(found.notes, "NUL") == {"NUL": {"count": 1, "first": f"{path}:{last_line}"}}


def test_duplicates_are_counted_in_bounded_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_cache, "_HASHES_AT_ONCE", 10)
    documents = made_up_documents(150)
    source = corpus(write_text(tmp_path / "a.txt", [*documents, *documents[:40], *documents[:40]]))
    assert prepare(source, WordTokenizer(), cache_dir=tmp_path, num_workers=0).statistics.duplicate_documents == 80


def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    source = corpus(write_text(tmp_path / "a.txt", made_up_documents(200)))
    results = [
        prepare(source, WordTokenizer(), cache_dir=tmp_path / f"cache{workers}", num_workers=workers)
        for workers in (0, 3)
    ]
    contents = [files_of(result.folder) for result in results]
    assert len(results[0].train._shards) > 5
    assert contents[0] == contents[1]


def test_a_second_prepare_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_text(tmp_path / "a.txt", made_up_documents(100))
    first = prepare(corpus(path), WordTokenizer(), cache_dir=tmp_path / "cache", num_workers=0)
    monkeypatch.setattr(FileCorpus, "documents", lambda self: pytest.fail("read again"))
    os.utime(path, (1, 1))
    second = prepare(corpus(path), WordTokenizer(), cache_dir=tmp_path / "cache", num_workers=0)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert second.folder == first.folder
    assert second.statistics == first.statistics


def test_the_key_follows_content_tokenizer_settings_and_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = made_up_documents(60)
    path = write_text(tmp_path / "a.txt", documents)

    def folder(vocab_size: int = 512, **settings: Any) -> Path:
        tokenizer = WordTokenizer(vocab_size)
        return prepare(corpus(path, **settings), tokenizer, cache_dir=tmp_path / "cache", num_workers=0).folder

    folders = [folder(), folder(256), folder(validation_fraction=0.2)]
    with monkeypatch.context() as patch:
        patch.setattr(token_cache, "CACHE_FORMAT", 99)
        folders.append(folder())
    stamp = path.stat().st_mtime_ns
    text = path.read_text()
    path.write_text(text.replace("a", "b", 1))  # one letter changed, with the same size and time
    os.utime(path, ns=(stamp, stamp))
    folders.append(folder())
    assert len(set(folders)) == 5
    path.write_text(text)
    assert folder() == folders[0]


_CHILD = """
import sys, time
from pathlib import Path
from fakes.texts import WordTokenizer
from lmtransfer.data import token_cache
from lmtransfer.data.token_cache import prepare
from lmtransfer.data.corpora.corpus import FileCorpus

class Slow(WordTokenizer):
    def encode_ids(self, texts):
        time.sleep(0.05)
        return super().encode_ids(texts)

if __name__ == "__main__":
    token_cache.BLOCK_CHARACTERS = 5000
    source = FileCorpus(path={path!r}, name="made up", validation_fraction=0.1)
    prepare(source, Slow(), cache_dir={cache!r}, num_workers={workers})
"""


def child(tmp_path: Path, text: Path, workers: int) -> subprocess.Popen[bytes]:
    script = tmp_path / "child.py"
    script.write_text(_CHILD.format(path=str(text), cache=str(tmp_path / "cache"), workers=workers))
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.Popen([sys.executable, str(script)], env=environment, start_new_session=True)


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_where_it_was(tmp_path: Path) -> None:
    text = write_text(tmp_path / "a.txt", made_up_documents(400))
    done: set[Path] = set()
    for more, workers in ((1, 2), (3, 0)):  # killed twice
        process = child(tmp_path, text, workers)
        target = len(done) + more
        wait_for(lambda target=target: len(list(tmp_path.glob("cache/corpora/*/blocks/*.json"))) >= target)
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        psutil.wait_procs(started, timeout=30)
        assert not any(worker.is_running() for worker in started), "a worker outlived its parent"
        assert not list(tmp_path.glob("cache/corpora/*/manifest.json"))
        done = set(tmp_path.glob("cache/corpora/*/blocks/*.json"))
    # Remains of a kill: a staged shard, and a shard whose record was never written.
    folder = next(iter(done)).parents[1]
    (folder / "train" / ".shard-00099.1.tmp").mkdir()
    missing = next(index for index in range(99) if not token_cache.record_path(folder, index).exists())
    (folder / "train" / f"shard-{missing:05d}").mkdir(exist_ok=True)
    (folder / "train" / f"shard-{missing:05d}" / "tokens.npy").write_bytes(b"torn")
    stamps = {path: path.stat().st_mtime_ns for path in done}

    kept = []
    resumed = prepare(
        corpus(text),
        WordTokenizer(),
        cache_dir=tmp_path / "cache",
        num_workers=0,
        on_progress=lambda state: kept.append(state.num_reused_blocks),
    )
    assert kept[-1] == len(done) >= 4
    assert {path: path.stat().st_mtime_ns for path in done} == stamps
    fresh = prepare(corpus(text), WordTokenizer(), cache_dir=tmp_path / "fresh", num_workers=0)
    assert files_of(resumed.folder) == files_of(fresh.folder)


SHARE_JOB = """
import sys
from pathlib import Path
from fakes.texts import WordTokenizer
from lmtransfer.data import token_cache
from lmtransfer.data.corpora.corpus import FileCorpus
token_cache.BLOCK_CHARACTERS = 5000
text, cache, share = sys.argv[1:]
corpus = FileCorpus(path=text, name="made up", validation_fraction=0.1)
token_cache.prepare_share(
    corpus, WordTokenizer(), token_cache.ShareOfBlocks.of(share), cache_dir=Path(cache), num_workers=0
)
"""


def share_job(text: Path, cache: Path, share: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.Popen([sys.executable, "-c", SHARE_JOB, str(text), str(cache), share], env=environment)


def test_jobs_that_share_a_corpus_are_one_preparation(tmp_path: Path) -> None:
    """Four processes at once, one of them killed and begun again, and one that never ran; then the join."""
    text = write_text(tmp_path / "a.txt", made_up_documents(400))
    jobs = [share_job(text, tmp_path / "cache", f"{number}/4") for number in (1, 2, 3)]
    wait_for(lambda: len(list(tmp_path.glob("cache/corpora/*/blocks/*.json"))) >= 2)
    jobs[0].send_signal(signal.SIGKILL)
    jobs[0].wait()
    jobs[0] = share_job(text, tmp_path / "cache", "1/4")
    assert [job.wait() for job in jobs] == [0, 0, 0]
    done = {int(path.stem) for path in tmp_path.glob("cache/corpora/*/blocks/*.json")}
    assert {number % 4 for number in done} == {0, 1, 2}
    assert not list(tmp_path.glob("cache/corpora/*/manifest.json"))
    kept = []
    joined = prepare(
        corpus(text),
        WordTokenizer(),
        cache_dir=tmp_path / "cache",
        num_workers=0,
        on_progress=lambda state: kept.append(state.num_reused_blocks),
    )
    assert kept[-1] == len(done)
    fresh = prepare(corpus(text), WordTokenizer(), cache_dir=tmp_path / "fresh", num_workers=0)
    assert files_of(joined.folder) == files_of(fresh.folder)


def test_a_preparation_waits_for_the_shares_of_others(tmp_path: Path) -> None:
    text = write_text(tmp_path / "a.txt", made_up_documents(40))
    folder = prepare(corpus(text), WordTokenizer(), cache_dir=tmp_path / "cache", num_workers=0).folder
    order = []
    with token_cache.lock_folder(folder, share="1-of-2"):
        with token_cache.lock_folder(folder, share="2-of-2"):
            order.append("both shares")
        whole = threading.Thread(target=lambda: _note(folder, order))
        whole.start()
        time.sleep(0.3)
        order.append("still the share")
    whole.join(timeout=30)
    assert order == ["both shares", "still the share", "the whole"]


def _note(folder: Path, order: list[str]) -> None:
    with token_cache.lock_folder(folder):
        order.append("the whole")


def test_a_damaged_or_foreign_block_is_done_again(tmp_path: Path) -> None:
    source = corpus(write_text(tmp_path / "a.txt", made_up_documents(150)))
    first = prepare(source, WordTokenizer(), cache_dir=tmp_path / "cache", num_workers=0)
    whole = files_of(first.folder)
    (first.folder / "manifest.json").unlink()
    record = token_cache.record_path(first.folder, 0)
    record.write_text(record.read_text().replace('"digest": "', '"digest": "0', 1))
    tokens = first.folder / "train" / "shard-00001" / "tokens.npy"
    tokens.write_bytes(tokens.read_bytes()[:-2])
    states = []
    prepare(source, WordTokenizer(), cache_dir=tmp_path / "cache", num_workers=0, on_progress=states.append)
    assert states[-1].num_reused_blocks == len(states) - 2
    assert files_of(first.folder) == whole


def test_two_at_once_do_the_work_once(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", made_up_documents(200))

    def one(_: int) -> PreparedCorpus:
        return prepare(corpus(path), WordTokenizer(), cache_dir=tmp_path / "cache", num_workers=0)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(one, range(2)))
    assert sorted(prepared.from_cache for prepared in results) == [False, True]
    assert results[0].statistics == results[1].statistics


class _DyingTokenizer(WordTokenizer):
    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_worker_killed_for_want_of_memory_is_one_clear_error(tmp_path: Path) -> None:
    source = corpus(write_text(tmp_path / "a.txt", made_up_documents(100)))
    with refuses(DataError, "corpus=made up", "num_workers", "2"):
        prepare(source, _DyingTokenizer(), cache_dir=tmp_path / "cache", num_workers=2)


class _FullDiskTokenizer(WordTokenizer):
    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_disk_is_one_clear_error(tmp_path: Path, workers: int) -> None:
    source = corpus(write_text(tmp_path / "a.txt", made_up_documents(100)))
    folder = tmp_path / "cache"
    with refuses(DataError, "cache_dir: ", str(folder), "No space left on device", "LMTRANSFER_CACHE"):
        prepare(source, _FullDiskTokenizer(), cache_dir=folder, num_workers=workers)


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    source = corpus(write_text(tmp_path / "a.txt", made_up_documents(100)))
    folder = tmp_path / "file" / "cache"
    with refuses(DataError, "cache_dir: ", str(folder), "LMTRANSFER_CACHE"):
        prepare(source, WordTokenizer(), cache_dir=folder, num_workers=0)


@pytest.mark.parametrize("content", ["", "\n \n\n", "\x00\n"])
def test_a_corpus_without_text(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.txt").write_text(content)
    with refuses(DataError, "corpus=made up", str(tmp_path / "a.txt")):
        prepare(corpus(tmp_path / "a.txt"), WordTokenizer(), cache_dir=tmp_path / "cache", num_workers=0)


def test_a_corpus_shorter_than_a_row(tmp_path: Path) -> None:
    source = corpus(write_text(tmp_path / "a.txt", ["Five words are in here."]))
    assert prepare(source, WordTokenizer(), cache_dir=tmp_path, num_workers=0, min_tokens=5).train.num_tokens == 5
    with refuses(DataError, "corpus=made up", "5 tokens", "6"):
        prepare(source, WordTokenizer(), cache_dir=tmp_path, num_workers=0, min_tokens=6)


def test_a_single_document_still_has_validation(tmp_path: Path) -> None:
    document = "\n".join(made_up_documents(50))
    prepared = prepare(
        corpus(write_text(tmp_path / "a.txt", [document])), WordTokenizer(), cache_dir=tmp_path, num_workers=0
    )
    assert (prepared.train.num_documents, prepared.validation.num_documents) == (1, 1)
    assert [*token_lists(prepared.train)[0], *token_lists(prepared.validation)[0]] == expected_lists(
        [document], WordTokenizer()
    )[0]


def test_bad_bytes_in_the_middle_stop_it_and_lose_nothing(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", made_up_documents(150))
    good = path.read_bytes()
    path.write_bytes(good + b"\n\ncaf\xe9\n")
    line = path.read_bytes().count(b"\n")
    for workers in (0, 2):
        with refuses(DataError, f"{path}:{line}: ", "UTF-8"):
            prepare(corpus(path), WordTokenizer(), cache_dir=tmp_path / "cache", num_workers=workers)
    prepared = prepare(
        corpus(path, encoding_errors="replace"), WordTokenizer(), cache_dir=tmp_path / "cache", num_workers=0
    )
    assert by_noun(prepared.statistics.notes, "UTF-8")["UTF-8"]["first"] == f"{path}:{line}"


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "mine"))
    assert default_cache_dir() == tmp_path / "mine"
    source = corpus(write_text(tmp_path / "a.txt", made_up_documents(100)))
    assert prepare(source, WordTokenizer(), num_workers=0).folder.is_relative_to(tmp_path / "mine")
    monkeypatch.delenv("LMTRANSFER_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_cache_dir() == tmp_path / "home" / ".cache" / "lmtransfer"


class TestTokenizer:
    @pytest.fixture
    def source(self, tmp_path: Path) -> FileCorpus:
        return corpus(write_text(tmp_path / "a.txt", made_up_documents(400)))

    def trainer(self, **settings: Any) -> SentencePieceTrainer:
        return SentencePieceTrainer(**{"kind": "unigram", "vocab_size": 60, **settings})

    def test_it_is_trained_once(self, tmp_path: Path, source: FileCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
        first = tokenizer_for(source, self.trainer(), cache_dir=tmp_path / "cache")
        monkeypatch.setattr(SentencePieceTrainer, "train", lambda *_: pytest.fail("trained again"))
        second = tokenizer_for(source, self.trainer(), cache_dir=tmp_path / "cache")
        assert first.fingerprint == second.fingerprint
        assert isinstance(first, SentencePieceTokenizer)
        assert first.num_pieces == 60

    def test_other_settings_or_text_train_another(self, tmp_path: Path, source: FileCorpus) -> None:
        other = corpus(write_text(tmp_path / "b.txt", made_up_documents(400, seed=1)))
        fingerprints = {
            tokenizer_for(source, self.trainer(), cache_dir=tmp_path / "cache").fingerprint,
            tokenizer_for(source, self.trainer(vocab_size=61), cache_dir=tmp_path / "cache").fingerprint,
            tokenizer_for(other, self.trainer(), cache_dir=tmp_path / "cache").fingerprint,
        }
        assert len(fingerprints) == 3

    def test_held_out_documents_are_not_looked_at(self, tmp_path: Path, source: FileCorpus) -> None:
        class Recorder:
            fingerprint = "recorder"
            seen: list[str]

            def train(self, lines: Iterator[str], folder: Path) -> Any:
                self.seen = list(lines)
                raise KeyboardInterrupt

        recorder = Recorder()
        with pytest.raises(KeyboardInterrupt):
            tokenizer_for(source, recorder, cache_dir=tmp_path / "cache")
        documents = list(source.documents())
        train = [document.text for document in documents if not source.is_validation(document)]
        assert "\n".join(recorder.seen) == "\n".join(train)
        assert len(train) < len(documents)

    def test_a_failed_training_leaves_nothing(self, tmp_path: Path, source: FileCorpus) -> None:
        with refuses(DataError, "tokenizer.vocab_size=100000", "tokenizer.allow_fewer=true"):
            tokenizer_for(source, self.trainer(vocab_size=100_000, allow_fewer=False), cache_dir=tmp_path / "cache")
        assert [path for path in (tmp_path / "cache" / "tokenizers").iterdir() if path.is_dir()] == []


def test_who_waits_for_another_process_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(token_cache, "_PATIENCE", 0.05)
    folder = tmp_path / "corpora" / "mine"
    entered = threading.Event()

    def second() -> None:
        with token_cache.lock_folder(folder):
            entered.set()

    waiting = threading.Thread(target=second)
    said = ""
    with token_cache.lock_folder(folder):
        assert capsys.readouterr().err == ""
        waiting.start()
        while "\n" not in said:
            said += capsys.readouterr().err
            time.sleep(0.01)
        assert not entered.is_set()
    waiting.join(timeout=30)
    assert entered.is_set()
    assert str(folder) in said


def _fill_cache(tmp_path: Path) -> tuple[FileCorpus, SentencePieceTrainer]:
    source = corpus(write_text(tmp_path / "a.txt", made_up_documents(60)))
    trainer = SentencePieceTrainer(kind="unigram", vocab_size=60, allow_fewer=True)
    assert not prepare(source, WordTokenizer(), cache_dir=tmp_path / "cache", num_workers=0).from_cache
    tokenizer_for(source, trainer, cache_dir=tmp_path / "cache")
    return source, trainer


def _take_rights(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def test_a_complete_cache_of_another_user_is_read_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, trainer = _fill_cache(tmp_path)
    fingerprint = tokenizer_for(source, trainer, cache_dir=tmp_path / "cache").fingerprint
    _take_rights(tmp_path / "cache")
    monkeypatch.setattr(token_cache.fcntl, "flock", _raise(errno.ENOLCK))
    with no_privileges():
        assert prepare(source, WordTokenizer(), cache_dir=tmp_path / "cache", num_workers=0).from_cache
        assert tokenizer_for(source, trainer, cache_dir=tmp_path / "cache").fingerprint == fingerprint


def test_a_cache_that_may_not_be_written_is_refused_with_advice_that_fits(tmp_path: Path) -> None:
    _fill_cache(tmp_path)
    other = corpus(write_text(tmp_path / "b.txt", made_up_documents(50)))
    _take_rights(tmp_path / "cache")
    with no_privileges(), refuses(DataError, "ermission denied", "that you may write to") as caught:
        prepare(other, WordTokenizer(), cache_dir=tmp_path / "cache", num_workers=0)
    assert "disk" not in str(caught.value)


def _raise(number: int) -> Callable[..., Any]:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named_at_once(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = corpus(write_text(tmp_path / "a.txt", made_up_documents(20)))
    monkeypatch.setattr(token_cache.fcntl, "flock", _raise(number))
    with refuses(DataError, str(tmp_path / "cache" / "corpora"), os.strerror(number), "no file locks", "local disk"):
        prepare(source, WordTokenizer(), cache_dir=tmp_path / "cache", num_workers=0)
    with refuses(DataError, str(tmp_path / "cache" / "tokenizers"), "no file locks"):
        tokenizer_for(source, SentencePieceTrainer(kind="unigram", vocab_size=60), cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(("mask", "mode"), [(0o002, 0o664), (0o027, 0o640)])
def test_the_files_of_the_cache_follow_the_umask_and_the_group_of_their_folder(
    mask: int, mode: int, tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o2775)
    before = os.umask(mask)
    try:
        _fill_cache(tmp_path)
    finally:
        os.umask(before)
    paths = list((tmp_path / "cache").rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {mode}
    assert all(path.stat().st_mode & stat.S_ISGID for path in paths if path.is_dir())
    assert any(path.name.endswith(".lock") for path in paths)


def test_notes_from_the_cache_name_the_files_of_the_reader(tmp_path: Path) -> None:
    for name, other in (("alice", "x.rst"), ("bob", "y.csv")):
        write_text(tmp_path / name / f"{name}-1.txt", made_up_documents(20))
        (tmp_path / name / f"{name}-2.txt").write_text("Nul\0 here.\n")
        (tmp_path / name / other).write_text("text\n")
    made, read = (
        prepare(corpus(tmp_path / name), WordTokenizer(), cache_dir=tmp_path / "cache", num_workers=0)
        for name in ("alice", "bob")
    )
    assert (made.from_cache, read.from_cache) == (False, True)
    assert "alice" not in (read.folder / "manifest.json").read_text()
    places = {kind: str(note["first"]) for kind, note in read.statistics.notes.items()}
    assert by_noun(places, "NUL", "csv", ".rst,") == {
        "NUL": f"{tmp_path / 'bob' / 'bob-2.txt'}:1",
        "csv": str(tmp_path / "bob" / "y.csv"),
    }
    assert "NUL characters dropped" in made.statistics.notes
    assert made.statistics.notes["NUL characters dropped"]["first"] == f"{tmp_path / 'alice' / 'alice-2.txt'}:1"


@pytest.mark.slow
def test_a_cache_on_a_read_only_mount_is_read(tmp_path: Path) -> None:
    source, _ = _fill_cache(tmp_path)
    script = (
        "import sys; from lmtransfer.data.token_cache import *; import lmtransfer.data.token_cache as c; "
        "from fakes.texts import WordTokenizer; from lmtransfer.data.corpora.corpus import FileCorpus; "
        "c.BLOCK_CHARACTERS = 5000; "
        "made = FileCorpus(path=sys.argv[1], name='made up', validation_fraction=0.1, cache_dir=sys.argv[2]); "
        "print(prepare(made, WordTokenizer(), cache_dir=sys.argv[2]).from_cache)"
    )
    mounted = 'mount --bind "$2" "$2" && mount -o remount,ro,bind "$2" && ! touch "$2/x" 2>/dev/null'
    words = ["unshare", "-rm", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*words, mounted, "", "", str(tmp_path / "cache")]).returncode:
        pytest.skip("this machine permits no read-only mount")
    run = f'{mounted} && exec "$0" -c "$3" "$1" "$2"'
    done = subprocess.run(
        [*words, run, sys.executable, *source.files, str(tmp_path / "cache"), script],
        env={**os.environ, "PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


pytest.importorskip("psutil", reason="measuring memory needs psutil")


@pytest.mark.slow
def test_four_times_the_corpus_needs_no_more_memory() -> None:
    command = [sys.executable, "-m", "scripts.bench.growth", "prepare", "--scale", "0.3"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.slow
def test_the_speed_of_preparing_is_compared(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = write_text(tmp_path / "a.txt", made_up_documents(100))
    command = [sys.executable, "-m", "scripts.bench.prepare_speed", str(path), "--rounds", "1", "--vocab-size", "400"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    rows = {row.split()[0]: row.split() for row in finished.stdout.splitlines()[2:]}
    assert list(rows) == ["wordpiece", "byte_bpe", "unigram", "bpe"]
    assert all(row[4] == row[5] for kind, row in rows.items() if kind != "byte_bpe")
