"""What an encoder is pretrained on, and the losses."""
