"""``python -m rpeg`` is ``rpeg``."""

from rpeg.cli.main import main

main()
