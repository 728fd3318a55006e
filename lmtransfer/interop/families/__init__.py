"""One file a published family: how its tensors and settings are called there and here."""
