"""Tasks about single texts and pairs of texts: classes, scores, minimal pairs."""
