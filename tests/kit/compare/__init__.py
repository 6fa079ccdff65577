"""`make compare BASE=<commit>`: this tree beside an earlier commit, output by output."""
