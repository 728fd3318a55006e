"""lmtransfer pretrains a text encoder, transfers it to a task, and measures how much pretraining helped.

The commands are functions: ``from lmtransfer import pretrain, probe, finetune, evaluate, predict, export, report``.
``load`` loads a run into memory, ``load_records`` the scores of all runs. Everything is imported on first use; editors
and type checkers read ``__init__.pyi``.
"""

import os

from lmtransfer.system.cores import set_waiting

__version__ = "0.1.0"
__all__ = ["evaluate", "export", "finetune", "load", "load_records", "predict", "pretrain", "probe", "report"]

set_waiting(os.environ)  # here, because this file is imported before torch


def __getattr__(name):
    """Import a function of ``lmtransfer.api`` on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    function = getattr(import_module(f"{__name__}.api"), name)
    globals()[name] = function
    return function


def __dir__():
    """List the names in this module, including the functions."""
    return sorted({*globals(), *__all__})
