"""lmtransfer: pretrain a text encoder, transfer it, and learn by how much it helped."""

import os

from lmtransfer.system.waiting import set_waiting

__version__ = "0.1.0"

set_waiting(os.environ)  # here, since whatever imports torch for this package imports this file before it
