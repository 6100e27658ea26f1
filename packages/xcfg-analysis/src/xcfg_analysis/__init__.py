"""Attribution for xcfg: floors, effects, minimal alignment, signatures."""
