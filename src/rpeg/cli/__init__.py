"""The command line: one small file per command; heavy libraries are imported only by the command that needs them."""
