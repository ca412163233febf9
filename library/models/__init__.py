"""The linear layers of a model, and their problems, from the config that describes the model on Hugging Face."""
