"""Names of checkpoints as training programs give them, and the presets that they are."""

from __future__ import annotations

import re

from clustersim.simulator.reading.lookup import names

MODELS = "clustersim.workloads.models"

TUNED = ("_hf", "_instruct", "_chat", "_base", "_it", "_uncased", "_cased", "_pt")
"""Ends of names that do not change a model's sizes; ``bert_base_uncased`` is found before ``_base`` is cut."""


def preset_of(name: str) -> str | None:
    """The preset that the checkpoint *name* is, None if there is none of that name.

    >>> preset_of("meta-llama/Llama-2-7b-hf"), preset_of("openai-community/gpt2-xl"), preset_of("bert-base-uncased")
    ('llama2_7b', 'gpt2_xl', 'bert_base')
    >>> preset_of("meta-llama/Meta-Llama-3-8B-Instruct"), preset_of("mistralai/Mistral-7B-v0.1"), preset_of("my/model")
    ('llama3_8b', 'mistral_7b', None)
    """
    plain = re.sub(r"[-.]", "_", name.rpartition("/")[2].lower())
    plain = re.sub(r"_v\d+(_\d+)*$", "", plain).removeprefix("meta_")
    known = {one.replace("_", ""): one for one in names(MODELS)}
    while True:
        if (found := known.get(plain.replace("_", ""))) is not None:
            return found
        end = next((one for one in TUNED if plain.endswith(one)), None)
        if end is None:
            return None
        plain = plain.removesuffix(end)
