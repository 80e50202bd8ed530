"""Keys and files of Hugging Face's transformers: aliases of keys, and ``config.json`` as a model."""
