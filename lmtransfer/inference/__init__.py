"""Uses of a trained model: predict, embed, score without training, fill masks, inspect and serve."""
