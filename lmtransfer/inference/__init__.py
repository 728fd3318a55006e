"""Using a model: predict, embed, score without training, fill masks, inspect, serve."""
