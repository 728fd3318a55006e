"""lmtransfer: pretrain a text encoder, transfer it, and measure by how much pretraining helped."""

import os

from lmtransfer.system.waiting import set_waiting

__version__ = "0.1.0"

set_waiting(os.environ)  # here, because this file is imported before any import of torch for this package
