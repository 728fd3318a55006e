"""lmtransfer: pretrain a text encoder, transfer it, and learn by how much it helped."""

__version__ = "0.1.0"
