"""Tasks about single texts and text pairs: classes, scores and minimal pairs."""
