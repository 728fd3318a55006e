"""The data, from files to batches: file access, corpora, token stores, streams and packed batches."""
