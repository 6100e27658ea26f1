"""`xcfg matrix logp`: the rows of the selected log probability on the logits that real engines had."""
