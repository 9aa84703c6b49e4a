"""What runs on torch: models and tokenizers, sampling, log-probabilities, losses and optimisation."""
