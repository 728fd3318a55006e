"""Published file formats of labelled data."""
