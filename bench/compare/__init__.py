"""Roomkeeper beside the servicers its users would run instead, on the same work in one run."""
