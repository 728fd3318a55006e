"""Benchmarks, each started from the repository's root as ``python -m scripts.bench.<name>`` (with --help).

- ``vs_transformers``: training speed and memory against ``transformers.Trainer``
- ``compare_with_trainer``: the accuracy and speed of finetuning a published encoder, against the same
- ``batches``: how fast one process builds the batches of each objective
- ``prepare_memory``: whether the memory of ``lmtransfer prepare`` grows with the corpus
- ``waiting``: steps beside a busy process, for each setting of waiting threads
- ``worth``: what a task gains from each budget of pretraining, for the forecast of ``lmtransfer pretrain``
"""
