"""Benchmarks, each started from the repository's root as ``python -m scripts.bench.<name>`` (see --help).

- ``vs_transformers``: training speed and memory, compared with ``transformers.Trainer``
- ``compare_with_trainer``: the accuracy and speed of finetuning a published encoder, also compared with it
- ``batches``: how fast one process builds the batches of each objective
- ``growth``: how time, memory and disk of whole commands grow with the size of their input
- ``prepare_speed``: how long a corpus takes to prepare, compared with ``datasets.map`` and sentencepiece
- ``waiting``: the duration of steps beside a busy process, for each setting of waiting threads
- ``worth``: what a task gains from each budget of pretraining, for the forecast of ``lmtransfer pretrain``
"""
