"""The estimate of a candidate: the engine on layers in place of operators, and on transfers of a known duration."""
