"""The work of ``pretrain``: preparing the text, building the parts of the model, training the phases, evaluating."""
