"""The run model: a recording as four relations, and figures computed from blocks of them."""
