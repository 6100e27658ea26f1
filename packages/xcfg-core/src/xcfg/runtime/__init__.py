"""From a case to side scores: what each side is asked for, whether it can be honoured, and under which key."""
