"""lmtransfer: pretrain a text encoder, transfer it, and measure by how much pretraining helped.

The commands are functions: ``from lmtransfer import pretrain, probe, finetune, evaluate, predict, export, report``.
``load`` brings a run into memory, ``load_records`` the scores of all runs. Everything is imported at its first use.
"""

import os

from lmtransfer.system.waiting import set_waiting

TYPE_CHECKING = False  # as in typing, which the current folder could replace as long as __main__ has not run

if TYPE_CHECKING:
    from lmtransfer.api import evaluate, export, finetune, load, load_records, predict, pretrain, probe, report

__version__ = "0.1.0"
__all__ = ["evaluate", "export", "finetune", "load", "load_records", "predict", "pretrain", "probe", "report"]

set_waiting(os.environ)  # here, because this file is imported before any import of torch for this package

if not TYPE_CHECKING:  # a type checker would take any name for one of this module

    def __getattr__(name):
        """A function of ``lmtransfer.api``, imported at its first use."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        function = getattr(import_module(f"{__name__}.api"), name)
        globals()[name] = function
        return function

    def __dir__():
        """The names of this module, those of the functions too."""
        return sorted({*globals(), *__all__})
