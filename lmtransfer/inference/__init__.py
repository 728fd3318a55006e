"""Uses of a trained model: prediction, embedding, zero-shot scoring, mask filling, inspection and serving."""
