"""One file is one algorithm, one function one collective; the folder is what the tuner chooses from."""
