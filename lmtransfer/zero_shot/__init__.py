"""What a pretrained run can say without any training: how probable a sentence is, and what stands at a [MASK]."""
